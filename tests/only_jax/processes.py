"""Programs in processes of their own: JAX counts devices, and chooses its precision, once per process."""

import os
import subprocess
import sys


def python(code, **environment):
    """Run a program in a process of its own."""
    command, environment = [sys.executable, "-W", "error", "-c", code], {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
