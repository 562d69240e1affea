"""A world model with categorical latents, as in DreamerV3, on a world so small that the best predictions are known.

A ball moves through a box of 10 x 10 pixels. Where it meets a wall it gets one of eight shapes at random. A recurrent
state-space model sees the frames: a GRU keeps a state h; the prior p(z | h) and the posterior q(z | h, frame) are N
categorical variables with K classes each; h and a drawn z give the pixels. It learns as DreamerV3's does:
straight-through draws, 1% of the uniform distribution mixed into every latent's, two halves of the KL divergence with
free nats. What is compared is how scores become class probabilities.

Run one configuration by hand::

    catnat-experiments train world

The loss and its weights follow DreamerV3, with fewer free nats; the network is our own, a minute or two on
one core. The search has seed 0 and never sees the test sequences, the final runs have other seeds; all models are
evaluated on the same sequences and with the same seeds.
"""
