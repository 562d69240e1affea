"""Where a record comes from."""

import subprocess
from pathlib import Path


def commit() -> str:
    """The commit that is checked out, with "-dirty" behind it if files were changed since."""
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout.strip()
