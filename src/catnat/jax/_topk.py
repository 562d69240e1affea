"""A search for the k most probable classes that does not read the whole tree.

The probability of reaching a node bounds the probability of every class below it. So a subtree whose root is less
probable than k classes already found is skipped.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int

from catnat.jax import _walk
from catnat.jax._plan import Plan
from catnat.jax._walk import LazyScores

# A step of the search reads all nodes of _LEVELS levels below a place, and ends at _BLOCK places.
_LEVELS = 5
_BLOCK = 2**_LEVELS
# With more open places than this, the search continues from the last ones found instead of the most probable one.
_MOST_PLACES = 512


class TopK(NamedTuple):
    """The most probable classes of every row, best first.

    Example:
        >>> import jax
        >>> from catnat.jax import CatnatHead
        >>> found = CatnatHead(4, 8, key=jax.random.key(0)).topk(jax.numpy.zeros((2, 4)), k=3)
        >>> found.indices.shape, found.proven.all().item()
        ((2, 3), True)
    """

    values: Float[Array, "*batch k"]
    """The log-probabilities of the classes."""
    indices: Int[Array, "*batch k"]
    """The classes."""
    proven: Bool[Array, "*batch"]
    """Whether it is proven that no other class is more probable; False if ``max_nodes`` ended the search first."""
    visited: Int[Array, "*batch"]
    """The number of nodes read, of K-1."""


class _State(NamedTuple):
    """The leaves found and the nodes still open, with their log-probabilities; -inf marks empty entries."""

    leaves: Array  # the k most probable ones, best first
    leaf_log_prob: Array
    nodes: Array
    node_log_prob: Array
    visited: Array

    def bounds(self) -> Array:
        """Return the bound of the classes below each node, or -inf if it does not exceed the k-th leaf's value."""
        return jnp.where(self.node_log_prob > self.leaf_log_prob[-1], self.node_log_prob, -jnp.inf)


class _Search(NamedTuple):
    scores: LazyScores  # of one input
    plan: Plan
    k: int
    max_nodes: int

    def start(self) -> _State:
        """Return the state in which the root is open and no leaf is found."""
        # Beyond _MOST_PLACES the node read is one of the last _BLOCK, and the places below it are appended: less than
        # two blocks more. A descent takes at most depth / _LEVELS + 1 such steps.
        size = _MOST_PLACES + 2 * _BLOCK * (2 + self.plan.tree.depth // _LEVELS)
        nothing = functools.partial(jnp.full, fill_value=-jnp.inf, dtype=self.plan.dtype)
        # Inside shard_map, a loop's carry must vary over devices from the start: this 0 is computed from the scores.
        _, yes = _walk.branches_at(self.scores, jnp.zeros((), int), self.plan, floored=True)
        root = zero = (yes > 1).astype(int)
        return _State(
            leaves=jnp.broadcast_to(zero + self.plan.tree.num_nodes, self.k),
            leaf_log_prob=nothing(self.k) + zero,
            nodes=jnp.broadcast_to(root, size),
            node_log_prob=nothing(size).at[0].set(0) + zero,
            visited=zero,
        )

    def going(self, state: _State) -> Array:
        """Return whether to continue: a node is open, and fewer than k leaves are found or nodes may still be read."""
        may = (state.visited < self.max_nodes) | jnp.isneginf(state.leaf_log_prob[-1])
        return may & (state.bounds() > -jnp.inf).any()

    def deeper(self, state: _State) -> _State:
        """Read the nodes of some levels below the most probable open node.

        At first, and whenever too many places are open, only the last places found are candidates. So leaves are
        reached soon, and the number of places stays bounded.
        """
        place, bounds = jnp.arange(len(state.nodes)), state.bounds()
        height = (place + 1).max(initial=0, where=bounds > -jnp.inf)
        down = (height > _MOST_PLACES) | jnp.isneginf(state.leaf_log_prob[-1])
        chosen = jnp.where(place >= jnp.where(down, height - _BLOCK, 0), bounds, -jnp.inf).argmax()
        at, log_prob, read = self.below(state.nodes[chosen], bounds[chosen], state.leaf_log_prob[-1])
        is_leaf = at >= self.plan.tree.num_nodes
        leaves = jnp.concatenate([state.leaves, at])
        found = jnp.concatenate([state.leaf_log_prob, jnp.where(is_leaf, log_prob, -jnp.inf)])
        leaf_log_prob, best = lax.top_k(found, self.k)
        new = jnp.where(is_leaf, -jnp.inf, log_prob)
        return _State(
            leaves[best],
            leaf_log_prob,
            lax.dynamic_update_slice(state.nodes, at, (height,)),
            lax.dynamic_update_slice(bounds.at[chosen].set(-jnp.inf), new, (height,)),
            state.visited + read,
        )

    def below(self, node: Array, log_prob: Array, least: Array) -> tuple[Array, Array, Array]:
        """Return the places some levels below a node, their log-probabilities, and the number of nodes read."""
        levels, tree = [node[None]], self.plan.tree
        for _ in range(_LEVELS):
            levels.append(jnp.concatenate([_walk.step(levels[-1], bit, tree) for bit in (0, 1)]))
        index = _walk.node(jnp.concatenate(levels[:-1]), tree)
        branches = _walk.branches_at(self.scores, index, self.plan, floored=True)
        reached, read, start = log_prob[None], jnp.zeros((), int), 0
        for at in levels[:-1]:
            no, yes = (branch[start : start + len(at)] for branch in branches)
            leaf = at >= tree.num_nodes
            # A leaf stays in place and has no other side. A node less probable than k leaves is not read.
            reads = ~leaf & (reached > least)
            sides = jnp.where(leaf, 0, no), jnp.where(leaf, -jnp.inf, yes)
            reached = jnp.where(leaf | reads, reached, -jnp.inf)
            reached = jnp.concatenate([reached + side for side in sides])
            read, start = read + reads.sum(), start + len(at)
        return levels[-1], reached, read


@functools.partial(jax.jit, static_argnames=("k", "max_nodes", "plan"))
def topk(scores: LazyScores, k: int, max_nodes: int | None, plan: Plan) -> TopK:
    """Return the k most probable classes of every input, and whether this is proven."""
    scores, batch = lax.stop_gradient(scores), scores.shape[:-1]
    if plan.tree.num_nodes == 0:
        zeros = jnp.zeros(batch, int)
        return TopK(zeros[..., None].astype(plan.dtype), zeros[..., None], zeros == 0, zeros)

    def of_one(input: Array) -> TopK:
        most = plan.tree.num_nodes if max_nodes is None else max_nodes
        search = _Search(dataclasses.replace(scores, input=input), plan, k, most)
        state = lax.while_loop(search.going, search.deeper, search.start())
        proven = ~(state.bounds() > -jnp.inf).any()
        # Only NaN scores end a search before k leaves are found. The empty entries have class 0.
        values = jnp.where(jnp.isneginf(state.leaf_log_prob), jnp.nan, state.leaf_log_prob)
        return TopK(values, state.leaves - plan.tree.num_nodes, proven, state.visited)

    for _ in batch:
        of_one = jax.vmap(of_one)
    return of_one(scores.input)
