"""Variational autoencoders that learn by REINFORCE: the paper's Table 5.

Perceptrons encode and decode images of MNIST whose pixels are drawn anew, with their grey levels as probabilities, each
time that they are used. One hard draw of the latents is decoded. The decoder learns from its likelihood, the encoder
from the exact gradient of the entropy and from the score-function estimate with a baseline.

Run one configuration by hand::

    python -m catnat_experiments.tasks.vae_reinforce --parameterization natural --rate .0002 --epochs 5

The paper's "ELBO" of this table is above 0 nats in places, which that of a discrete likelihood cannot be; without the
prior's ``-N log K`` the numbers make sense. Records have both.

In the paper some runs with the natural activation end far behind the others (-122.7 +- 33.4 at N = 10). The preset
``collapse`` asks whether saturated nodes are the cause. It compares the boundary that clamps with the one that
reflects, and the paper's constant baseline, which is hundreds of nats below the loss of the first steps, with a moving
average.
"""
