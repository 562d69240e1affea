"""Which activation, boundary, mask mode and order of classes should be the default: six small tasks, one protocol.

A *panel* of tasks, each for one kind of use: a classifier, a bandit with masks, a table of probabilities (these three
are here), and small sizes of three experiments that exist: a VAE, graph structure learning, PPO on
a MinAtar game. On each of them softmax is compared with the tree's activations, and where that has a meaning with
other orders of classes and both mask modes. Every variant gets a rate of its own, from a grid that is the same for all
variants of a task and that grows where the best rate is at its edge. Final runs have other seeds than the search.

Run one task alone, whose records count for the whole panel too::

    catnat-experiments run defaults --preset bandit
"""
