"""What every test shares: import paths, reproducible Hypothesis, one thread per worker."""

import importlib.util
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two xdist workers on two cores: more threads only fight
os.environ.setdefault("MPLBACKEND", "Agg")
# In importlib mode pytest puts no test folder on the path; `import oracle` and `from conformance import ...` need it.
sys.path.insert(0, str(Path(__file__).parent))

import hypothesis

hypothesis.settings.register_profile("catnat", derandomize=True, deadline=None, database=None, max_examples=40)
hypothesis.settings.load_profile("catnat")


def pytest_configure(config):
    # torch says this about itself, the first time anybody differentiates in forward mode.
    config.addinivalue_line("filterwarnings", "ignore:`torch.jit.script` is deprecated:DeprecationWarning")


# catnat.jax is in the making: its tests run where JAX is installed.
collect_ignore = [] if importlib.util.find_spec("jax") else ["only_jax", "integrations/test_optax.py"]
