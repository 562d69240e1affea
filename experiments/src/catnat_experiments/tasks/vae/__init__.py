"""Variational autoencoders with categorical latents: the paper's main autoencoder, with Adam and with SGD.

An encoder maps an image of MNIST to the scores of N categorical variables with K classes each. A decoder maps sampled
classes to the log-odds of pixels. Both are trained on the evidence lower bound, with straight-through Gumbel-softmax
samples. The experiment compares maps from scores to class probabilities. The network is in ``network.py``.

Run one configuration by hand::

    catnat-experiments train vae parameterization=natural+relaxed+constant-rate steps=10000

The recipe follows the paper. What the paper does not give is from public code for such models: the batch of 100, the
50,000 steps and the decay of the learning rate. Another recipe fits the paper's numbers: a decoder trained on relaxed
samples, and a constant learning rate. Most presets use it, as ``+relaxed+constant-rate`` in the names of
parameterizations; a name without it means the public code's recipe.

Our own choices: catnat has K - 1 scores per variable, not K; 55,000 images train and 5,000 validate; the schedules of
learning rate and temperature, made for 50,000 steps, are stretched to the number of steps; the search has seed 0 and
does not use the test set, the final runs have other seeds; all models are evaluated with the same random numbers.
"""
