"""Parallel Atari games, with the observations and rewards of the agent."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from catnat_experiments.engine.extras import extra

with extra("atari"):
    from ale_py import Action, roms
    from ale_py.vector_env import AtariVectorEnv


SIDE, STACK = 84, 4
TIME_LIMIT = 108_000
"""The largest number of frames of a game, half an hour."""


class Step(NamedTuple):
    """The results of a step of all games, one entry per game.

    Attributes:
        rewards: The signs of the game's own rewards.
        terminal: Whether a life or the game was lost, so that no value follows.
        ended: Whether the step was terminal or reached the time limit, so that later steps do not belong to it.
    """

    rewards: NDArray[np.float32]
    terminal: NDArray[np.bool_]
    ended: NDArray[np.bool_]


class Games:
    """Parallel games with observations of four frames of 84 x 84, signs of rewards, and one life at a time.

    An action lasts four frames, and the observation has the brighter pixels of the last two. A game begins with up to
    29 frames without an action, and with FIRE if it has that action.

    After a step that ended a life or a game, the player does not choose the next step (:attr:`between`). This step
    starts the next game, or presses FIRE to start the next life. In CleanRL these steps are in a reset, which also
    skips the first frames of a life. Here they are steps that training leaves out. The time limit is the end of a life
    in CleanRL; here the value of its state is used.

    Attributes:
        frames: The current observations, (games, 4, 84, 84).
        between: Whether the player does not choose the next step.
        points: The returns so far of the games in progress: their own rewards, over all lives.
        returns: The returns of the games that ended.
    """

    def __init__(self, game: str, count: int, seed: int, time_limit: int = TIME_LIMIT) -> None:
        if game not in roms.get_all_rom_ids():
            raise ValueError(
                f"`game` is {game!r}, but ale-py has no such game: use a name such as breakout or ms_pacman."
            )
        # Not episodic_life=True, which starts a new game after every life.
        self._env = AtariVectorEnv(
            game, count, num_threads=1, reward_clipping=False, max_num_frames_per_episode=time_limit
        )
        actions = self._env.ale.get_action_set()
        self.actions = len(actions)
        self._fire = actions.index(Action.FIRE) if Action.FIRE in actions else actions.index(Action.NOOP)
        self.frames: NDArray[np.uint8]
        self.frames, about = self._env.reset(seed=seed)
        self._lives = about["lives"]
        self.between = np.zeros(count, np.bool_)
        self.points = np.zeros(count)
        self.returns: list[float] = []

    def step(self, actions: NDArray[np.int64]) -> Step:
        """Do one action in every game."""
        # If a game is over, the environment starts a new one for any action.
        pressed = np.where(self.between, self._fire, actions)
        self.frames, rewards, over, timed_out, about = self._env.step(pressed)
        lives = about["lives"]
        terminal = over | ((lives < self._lives) & (lives > 0))  # some games have 0 lives for a while before they end
        self._lives, self.between = lives, terminal | timed_out
        self.points += rewards
        finished = over | timed_out
        self.returns += self.points[finished].tolist()
        self.points[finished] = 0
        return Step(np.sign(rewards).astype(np.float32), terminal, self.between)


@functools.cache
def actions_of(game: str) -> int:
    """Return K, the number of a game's actions.

    >>> actions_of("breakout"), actions_of("seaquest")
    (4, 18)
    """
    return Games(game, 1, seed=1).actions


def seed_of(*numbers: int) -> int:
    """Return a seed for games; ALE needs a positive one, and gives the next numbers to the other games."""
    return 1 + int(np.random.SeedSequence(numbers).generate_state(1)[0]) % 2**30
