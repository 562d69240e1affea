"""Which activation and which order of classes should be the default: three small tasks, one protocol.

A *panel* of tasks, each for one kind of use: a classifier, a bandit with masks, a table of probabilities. On each of
them softmax is compared with the tree's activations, and with other orders of classes. Every variant gets a rate of its
own, from a grid that is the same for all variants of a task and that grows where the best rate is at its edge. Final
runs have other seeds than the search.
"""
