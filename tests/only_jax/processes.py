"""Programs in processes of their own: JAX counts devices, and chooses its precision, once per process."""

import os
import subprocess
import sys


def python(code, **environment):
    """Run a program in a process of its own."""
    # The cache of compiled programs may be written to by another process: JAX then warns and compiles for itself.
    warnings = ["-W", "error", "-W", "ignore:Error reading persistent compilation cache:UserWarning"]
    command, environment = [sys.executable, *warnings, "-c", code], {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
