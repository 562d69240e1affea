"""Graph structure learning, the paper's first experiment.

Every data point has its own random graph. Each of 102 possible entries of its adjacency matrix is there with
probability ``theta*``; a linear graph convolution turns node features into outputs, ``y_j = sum_i A_ij x_i W``. The
model sees only x and y. It learns W and the probability of each of the 24 x 24 entries, by minimizing the energy score
of its random predictions with a score-function gradient. What is compared is how a probability is parameterized.

Run one configuration by hand::

    catnat-experiments train gsl theta=.75 parameterization=natural rate=.01

The recipe follows the paper, and the public code of its first author where the paper is silent. Our own choices: every
data point of a batch gets 32 graphs of its own, where that code shares them in the batch; theta starts at no less than
0.01; the leave-one-out baseline is the unbiased one; the scale of the true W is set so that the true model has the
paper's energy score, with another value at theta* = 0.5; one rate serves W and the scores, except in the preset
"two-rates"; evaluations use the same random numbers for every model; the search has seed 0 and the final runs other
seeds.
"""
