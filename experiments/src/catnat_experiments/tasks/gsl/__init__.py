"""Graph structure learning, the paper's first experiment.

Every data point has its own random graph. Each of 102 possible entries of its adjacency matrix is 1 with probability
``theta*``. A linear graph convolution maps node features to outputs, ``y_j = sum_i A_ij x_i W``. The model receives
only x and y. It learns W and the probability of each of the 24 x 24 entries. It minimizes the energy score of its
random predictions with a score-function gradient. The experiment compares parameterizations of a probability.

Run one configuration by hand::

    catnat-experiments train gsl theta=.75 parameterization=natural rate=.01

The recipe follows the paper. What the paper does not give is from the public code of its first author. Our own choices:
every data point of a batch has its own 32 graphs, which that code shares in the batch; theta starts at 0.01 or more;
the leave-one-out baseline is the unbiased one; the scale of the true W gives the true model the paper's energy score,
with another scale at theta* = 0.5; W and the scores have one learning rate, except in the preset "two-rates";
evaluations use the same random numbers for every model; the search has seed 0 and the final runs other seeds.
"""
