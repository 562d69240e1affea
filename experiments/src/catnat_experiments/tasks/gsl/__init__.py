"""Graph structure learning: the paper's Table 2.

Every data point has its own random graph. Each of 102 possible entries of its adjacency matrix is there with
probability ``theta*``; a linear graph convolution turns node features into outputs, ``y_j = sum_i A_ij x_i W``. The
model sees only x and y. It learns W and the probability of each of the 24 x 24 entries, by minimizing the energy score
of its random predictions with a score-function gradient. What is compared is how a probability is parameterized.

Run one configuration by hand::

    python -m catnat_experiments.tasks.gsl --theta .75 --parameterization natural --rate .01

The recipe follows the paper, and the public code of its first author where the paper is silent. Our own choices: every
data point of a batch gets 32 graphs of its own (in that code the batch shares them; with that noise neither the paper's
numbers nor its rates come out, see the preset "shared"); theta starts at no less than 0.01; the leave-one-out baseline
is the unbiased one; evaluations use the same random numbers for every model; the search has seed 0 and the final runs
other seeds.
"""
