"""Variational autoencoders with categorical latents: the paper's main autoencoder, with Adam and with SGD.

An encoder turns an image of MNIST into the scores of N categorical variables with K classes each; a decoder turns drawn
classes back into the log-odds of pixels. Both learn from the evidence lower bound, with straight-through Gumbel-softmax
draws. What is compared is how scores become class probabilities. The network is in ``network.py``.

Run one configuration by hand::

    catnat-experiments train vae parameterization=natural+relaxed+constant-rate steps=10000

The recipe follows the paper, and public code for such models where the paper is silent: the batch of 100, the 50,000
steps and the fall of the rate are that code's. What fits the paper's numbers is another recipe: the decoder trained on
relaxed draws, and a rate that does not fall. Presets take that one, as ``+relaxed+constant-rate`` in the names of
parameterizations; a name without it means the public code's recipe. Our own choices: catnat has
K - 1 scores a variable, not K; 55,000 images train and 5,000 validate; the schedules of rate and temperature, made for
50,000 steps, stretch over however many steps there are; the search has seed 0 and never sees the test set, the final
runs have other seeds; all models are evaluated with the same random numbers.
"""
