"""A variational autoencoder with 20 categorical latents of 32 classes, in flax, optax and catnat.jax.

    python examples/mnist/jax_vae.py FOLDER

The folder holds MNIST's original files; without it, $CATNAT_DATA/mnist is taken. Eight epochs take about a minute.
"""

import argparse
import gzip
import math
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

import catnat.jax as cj

N, K, HIDDEN, BATCH = 20, 32, 256, 200


class VAE(nnx.Module):
    def __init__(self, rngs):
        def layers(features, outputs):
            first, last = nnx.Linear(features, HIDDEN, rngs=rngs), nnx.Linear(HIDDEN, outputs, rngs=rngs)
            return nnx.Sequential(first, nnx.relu, last)

        self.encoder = layers(784, N * (K - 1))  # K - 1 scores for each latent
        self.decoder = layers(N * K, 784)

    def posterior(self, x):
        return cj.OneHotCatnatStraightThrough(self.encoder(x).reshape(-1, N, K - 1))

    def decode(self, z):
        return self.decoder(z.reshape(-1, N * K))


def negative_elbo(model, x, key):
    posterior = model.posterior(x)
    pixels = model.decode(posterior.rsample(key=key))
    error = optax.sigmoid_binary_cross_entropy(pixels, x).sum(-1)
    return (error + N * math.log(K) - posterior.entropy().sum(-1)).mean()  # the prior is uniform


@nnx.jit
def step(model, optimizer, x, key):
    optimizer.update(model, nnx.grad(negative_elbo)(model, x, key))


def images(path):
    pixels = np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=16)
    return (pixels.reshape(-1, 784) >= 128).astype(np.float32)


parser = argparse.ArgumentParser()
parser.add_argument("folder", nargs="?", type=Path, default=Path(os.environ.get("CATNAT_DATA", ".")) / "mnist")
parser.add_argument("--steps", type=int, default=2400)
parser.add_argument("--picture", type=Path, default="jax_vae.png")
args = parser.parse_args()
train, test = (jnp.asarray(images(args.folder / f"{part}-images-idx3-ubyte.gz")) for part in ("train", "t10k"))
key, model = jax.random.key(0), VAE(nnx.Rngs(0))
evaluate, optimizer = nnx.jit(negative_elbo), nnx.Optimizer(model, optax.adam(2e-3), wrt=nnx.Param)
for i in range(args.steps + 1):
    rows, draws = jax.random.split(jax.random.fold_in(key, i))
    if i % 300 == 0 or i == args.steps:
        print(f"step {i:4}  test ELBO {-evaluate(model, test, draws):7.1f}", flush=True)
    step(model, optimizer, train[jax.random.randint(rows, (BATCH,), 0, len(train))], draws)

shown = test[:12]
copies = model.decode(model.posterior(shown).mode)
prior = model.decode(cj.OneHotCatnat(jnp.zeros((24, N, K - 1))).sample(key=key))  # zero scores: the uniform prior
rows = [*jnp.concatenate([shown, jax.nn.sigmoid(copies), jax.nn.sigmoid(prior)]).reshape(4, 12, 28, 28)]
picture = np.block([[np.asarray(one) for one in row] for row in rows])
plt.imsave(args.picture, picture.repeat(3, 0).repeat(3, 1), cmap="gray_r")
