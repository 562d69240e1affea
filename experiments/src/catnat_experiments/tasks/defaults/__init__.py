"""A comparison for the choice of a default activation and order of classes: three small tasks with one protocol.

The tasks of the *panel* are different uses: a classifier, a bandit with masks, a table of probabilities. On each task
softmax is compared with trees of both activations and several orders of classes. Every variant has its own learning
rate, from a grid that is the same for all variants of a task. The grid is extended if the best learning rate is at its
edge. Final runs have other seeds than the search.
"""
