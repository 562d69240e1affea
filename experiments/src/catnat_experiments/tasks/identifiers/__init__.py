"""Next-token modelling over Python identifiers: heads for 100,000 classes, compared at equal processor time.

The corpus is source code that every machine has (``corpus.py``). The model is an embedding, a recurrent layer, and a
head: the last layer, from features to the next token (``heads.py``). The time of a step differs much between heads, so
every run has the same processor time for its steps, without evaluations. The validation NLL is also computed after
powers of two of steps, to compare heads at equal steps.

Run one configuration by hand::

    catnat-experiments train identifiers "parameterization=huffman sigmoid" rate=.003 seconds=60

Our choices: one constant learning rate for all parameters of a run, selected by a search of equal processor time for
every head; Adam, and SparseAdam for sparse gradients (the embedding, and the heads that read a few rows per step);
heads start at the frequencies of the classes. The time to build a tree is not in the budget, except for learned trees;
records contain it. The same config gives the same steps, but their number depends on the machine.
"""
