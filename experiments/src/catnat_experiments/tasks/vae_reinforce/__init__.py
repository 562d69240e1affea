"""Variational autoencoders trained by REINFORCE: the paper's second autoencoder.

Perceptrons encode and decode images of MNIST. At each use pixels are sampled with their grey levels as probabilities.
One hard sample of the latents is decoded. The decoder is trained by its likelihood, the encoder by the exact gradient
of the entropy and by the score-function estimate with a baseline.

Run one configuration by hand::

    catnat-experiments train vae_reinforce parameterization=natural rate=.0002

The "ELBO" of the paper's Table 6 is without the constant ``-N log K`` of the prior. Its largest number is -9.6 nats,
which no model of binarized MNIST can reach. With the constant the numbers are plausible. Records contain both.
"""
