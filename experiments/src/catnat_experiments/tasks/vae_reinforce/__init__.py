"""Variational autoencoders that learn by REINFORCE: the paper's second autoencoder.

Perceptrons encode and decode images of MNIST whose pixels are drawn anew, with their grey levels as probabilities, each
time that they are used. One hard draw of the latents is decoded. The decoder learns from its likelihood, the encoder
from the exact gradient of the entropy and from the score-function estimate with a baseline.

Run one configuration by hand::

    catnat-experiments train vae_reinforce parameterization=natural rate=.0002

The paper's table of this model, its Table 6, calls "ELBO" what leaves out the constant ``-N log K`` of the prior: its
largest number is -9.6 nats, and no model of binarized MNIST can be that good. With the constant the numbers make
sense. Records have both.
"""
