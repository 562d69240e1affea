"""Atari games side by side, as the agent sees them."""

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
"""Frames of a game, half an hour."""


class Step(NamedTuple):
    """What a step of all games led to, one entry per game.

    Attributes:
        rewards: Signs of the game's own rewards.
        terminal: A life or the game was lost: no value follows.
        ended: That, or the time limit was reached: nothing that follows belongs to this step.
    """

    rewards: NDArray[np.float32]
    terminal: NDArray[np.bool_]
    ended: NDArray[np.bool_]


class Games:
    """Games side by side, as the learner sees them: four frames of 84 x 84, signs of rewards, one life at a time.

    An action lasts four frames, of the last two the brighter pixels are seen. A game begins with up to 29 frames of
    doing nothing, and with FIRE if it has that action.

    After a step that ended a life or a game, the next step is not the player's (:attr:`between`): it begins the next
    game, or it presses FIRE to begin the next life. CleanRL hides these steps in a reset, where it also lets the first
    frames of a life pass; here they count as steps, and learning leaves them out. At the time limit CleanRL sees the
    end of a life, we a state whose value is known.

    Attributes:
        frames: What the players see now, (games, 4, 84, 84).
        between: Whose next step is not theirs.
        points: The returns of the games under way: their own rewards, over all lives.
        returns: Of all games that ended.
    """

    def __init__(self, game: str, count: int, seed: int, time_limit: int = TIME_LIMIT) -> None:
        if game not in roms.get_all_rom_ids():
            raise ValueError(
                f"`game` is {game!r}, but ale-py has no such game: give a name in the manner of breakout or ms_pacman."
            )
        # Not episodic_life=True: that begins a new game after every life.
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
        """One action in every game."""
        # Where a game is over, the environment begins a new one, whatever the action.
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
    """K, the number of a game's actions.

    >>> actions_of("breakout"), actions_of("seaquest")
    (4, 18)
    """
    return Games(game, 1, seed=1).actions


def seed_of(*numbers: int) -> int:
    """A seed for games; ALE wants it above 0, and gives the next numbers to the games beside the first."""
    return 1 + int(np.random.SeedSequence(numbers).generate_state(1)[0]) % 2**30
