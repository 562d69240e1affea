"""A ball in a box: frames, sequences, and the exact probabilities of the next frames."""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from catnat_experiments.common import streams

BOX, SHAPE = 10, 3
PIXELS = BOX * BOX
PLACES = BOX - SHAPE + 1
"""The number of places of the ball's upper left corner, along each axis."""
SHAPES = np.array(
    [
        [int(pixel) for pixel in rows.replace(" ", "")]
        for rows in (
            "111 111 111",
            "111 101 111",
            "010 111 010",
            "101 010 101",
            "111 000 111",
            "101 101 101",
            "111 010 010",
            "100 100 111",
        )
    ]
).reshape(-1, SHAPE, SHAPE)


class Motion(NamedTuple):
    """The motion of the ball. A state is a place and the step that led to it.

    Attributes:
        states: The row, the column and the step along each, -1 or 1, (states, 4).
        next: The number of the next state, (states,).
        bounces: Whether the ball meets a wall on the way to the next state, and so gets a new shape, (states,).
    """

    states: NDArray[np.int64]
    next: NDArray[np.int64]
    bounces: NDArray[np.bool_]


@functools.cache
def motion() -> Motion:
    """Return the motion; a step that would leave the box is reversed."""
    axis = [(place, step) for place in range(PLACES) for step in (-1, 1)]
    states = [(row, column, down, right) for (row, down), (column, right) in itertools.product(axis, axis)]
    index = {state: number for number, state in enumerate(states)}

    def turned(place: int, step: int) -> int:
        return step if 0 <= place + step < PLACES else -step

    steps = [(turned(row, down), turned(column, right)) for row, column, down, right in states]
    following = [
        index[row + down, column + right, down, right]
        for (row, column, *_), (down, right) in zip(states, steps, strict=True)
    ]
    bounces = [(down, right) != after for (_, _, down, right), after in zip(states, steps, strict=True)]
    return Motion(np.array(states), np.array(following), np.array(bounces))


@functools.cache
def canvas() -> Tensor:
    """Return the frame of every state of motion and every shape, (states, shapes, pixels), of zeros and ones."""
    states = motion().states
    frames = np.zeros((len(states), len(SHAPES), BOX, BOX), np.float32)
    for state, (row, column, *_) in enumerate(states):
        frames[state, :, row : row + SHAPE, column : column + SHAPE] = SHAPES
    return torch.from_numpy(frames).flatten(2)


class Play(NamedTuple):
    """Sequences of the world: the states of motion and the shapes, (time, sequences) each."""

    states: NDArray[np.int64]
    shapes: NDArray[np.int64]

    @property
    def frames(self) -> Tensor:
        """The frames, (time, sequences, pixels)."""
        return canvas()[torch.from_numpy(self.states), torch.from_numpy(self.shapes)]


def play(sequences: int, length: int, stream: np.random.Generator) -> Play:
    """Draw sequences with uniform first states and shapes."""
    dynamics = motion()
    states, shapes = np.empty((2, length, sequences), np.int64)
    states[0] = stream.integers(len(dynamics.states), size=sequences)
    shapes[0] = stream.integers(len(SHAPES), size=sequences)
    for now in range(1, length):
        before, fresh = states[now - 1], stream.integers(len(SHAPES), size=sequences)
        states[now] = dynamics.next[before]
        shapes[now] = np.where(dynamics.bounces[before], fresh, shapes[now - 1])
    return Play(states, shapes)


def predicted(states: NDArray[np.int64], shapes: NDArray[np.int64], ahead: int) -> Tensor:
    """Return the exact probability of every pixel in the next frames, (ahead, sequences, pixels), float64.

    Two frames determine the whole state, so no prediction from past frames is better.
    """
    dynamics, known = motion(), np.ones(len(states), bool)
    frames = []
    for _ in range(ahead):
        known &= ~dynamics.bounces[states]
        states = dynamics.next[states]
        possible = canvas()[torch.from_numpy(states)].double()
        certain = possible[torch.arange(len(states)), torch.from_numpy(shapes)]
        frames.append(torch.where(torch.from_numpy(known).unsqueeze(1), certain, possible.mean(1)))
    return torch.stack(frames)


stream_of = functools.partial(streams.stream_of, ("run", "validation", "test"))
"""Random numbers for a purpose and a seed."""
