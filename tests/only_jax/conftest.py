"""The tests of this folder are stated in float64, as the shared suite does."""

import jax

jax.config.update("jax_enable_x64", True)
