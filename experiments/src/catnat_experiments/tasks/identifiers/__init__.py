"""Next-token modelling over Python identifiers: heads for 100,000 classes, compared at equal processor time.

The corpus is source code that every machine has (``corpus.py``); the model is an embedding, a recurrent layer, and a
head: the last layer, from features to the next token (``heads.py``). Heads differ so much in what a step
costs that equal steps would say little: every run has the same processor time for its steps, and evaluations do not
count. After a power of two of steps the validation NLL is taken as well, so that heads can be compared at equal steps.

Run one configuration by hand::

    catnat-experiments train identifiers "parameterization=huffman sigmoid" rate=.003 seconds=60

Our choices: one rate for all parameters of a run, constant, selected by a search of equal processor time for every
head; Adam, and SparseAdam where gradients are sparse (the embedding, and the heads that read a few rows a step); heads
start at the frequencies of the classes. The time to build a tree is not in the budget; records have it. The same
config gives the same steps, not the same number of them: that is up to the machine.
"""
