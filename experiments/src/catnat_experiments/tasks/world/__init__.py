"""A world model with categorical latents, as in DreamerV3, on a small world whose best predictions are known.

A ball moves through a box of 10 x 10 pixels. At a wall it gets one of eight shapes at random. A recurrent state-space
model receives the frames. A GRU has the state h; the prior p(z | h) and the posterior q(z | h, frame) are N categorical
variables with K classes each; a decoder maps h and a sample of z to the pixels. Training is that of DreamerV3:
straight-through samples, 1% of the uniform distribution mixed into every latent's, and a KL divergence of two parts
with free nats. The experiment compares maps from scores to class probabilities.

Run one configuration by hand::

    catnat-experiments train world

The loss and its weights follow DreamerV3, with fewer free nats. The network is our own; a run takes a minute or two on
one core. The search has seed 0 and does not use the test sequences; the final runs have other seeds. All models are
evaluated on the same sequences and with the same seeds.
"""
