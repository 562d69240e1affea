"""The data sets, split into rows for training, validation and test."""

from __future__ import annotations

import functools
import warnings
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

import catnat
from catnat_experiments.common.splits import SPLITS, split
from catnat_experiments.common.ta_feng import purchases
from catnat_experiments.engine.extras import extra

with extra("classifiers"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about how it opens its files
        import simple_icd_10_cm as icd
    from sklearn.datasets import load_digits, make_classification
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
    from sklearn.pipeline import make_pipeline


class Data(NamedTuple):
    """Rows and labels by split, with the taxonomy of the labels if there is one."""

    X: dict[str, Any]
    y: dict[str, NDArray[Any]]
    taxonomy: catnat.Taxonomy | None = None
    strengths: tuple[float, float] = (10, 1000)
    """The range of scikit-learn's C for logistic regression, which depends on the scale of the features."""

    def groups(self) -> catnat.Taxonomy:
        """Return the taxonomy; without one, raise an error."""
        if self.taxonomy is None:
            raise ValueError("This method needs a taxonomy of the labels: use it with icd10 or baskets.")
        return self.taxonomy


@functools.lru_cache(maxsize=2)
def load(name: str, seed: int) -> Data:
    """Return a data set; the seed determines the split."""
    rng = np.random.default_rng(seed)
    if name == "digits":
        X, y = load_digits(return_X_y=True)  # noqa: N806
        return _split(X, y, rng)
    if name == "baskets":
        rows, labels, taxonomy = _baskets()
        return _split(rows, labels, rng)._replace(taxonomy=taxonomy, strengths=(0.03, 3))
    kind, *sizes = name.split("-")
    if kind == "icd10":
        return _categories(int(sizes[0]), rng)
    if kind != "generated":
        raise ValueError(
            f"`data` is {name!r}, but digits, baskets, icd10-<texts> or generated-<classes>-<rows> is needed."
        )
    return _split(*generated(int(sizes[0]), int(sizes[1])), rng)


def generated(classes: int, rows: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return data of xgboost#2926's generator: 20 features, 10 of them informative; the same rows for all seeds.

    Every class has two corners of a cube, so more than 512 classes need more informative features.
    """
    informative = max(10, int(np.ceil(np.log2(2 * classes))))
    found = make_classification(rows, n_informative=informative, n_redundant=0, n_classes=classes, random_state=0)
    return found[0], found[1]


def _split(X: Any, y: NDArray[Any], rng: np.random.Generator) -> Data:  # noqa: N803
    """Split rows: eight tenths for training, one tenth each for validation and test."""
    parts = split(len(y), rng, (8, 1))
    return Data({name: X[at] for name, at in parts.items()}, {name: y[at] for name, at in parts.items()})


# ---- ICD-10-CM: the text of a code, and its category of three characters ----


def _categories(texts: int, rng: np.random.Generator) -> Data:
    """Return texts as rows: for training, descriptions and half of the inclusion terms, which are physicians' words.

    The other inclusion terms are for validation and test. A category has at most ``texts`` descriptions, because some
    injuries have thousands that differ in a word.
    """
    described, included = _texts(texts)
    order = rng.permutation(len(included))
    parts = np.split(order, [len(order) // 2, 3 * len(order) // 4])
    rows = [[*described, *(included[i] for i in parts[0])], *([included[i] for i in part] for part in parts[1:])]
    text = make_pipeline(
        HashingVectorizer(n_features=2**12, ngram_range=(1, 2), norm=None, alternate_sign=False),
        TfidfTransformer(sublinear_tf=True),
    )
    text.fit([text for text, _ in rows[0]])
    paths = [_path(category) for category in sorted({category for _, category in described})]
    X = {name: text.transform([text for text, _ in part]) for name, part in zip(SPLITS, rows, strict=True)}  # noqa: N806
    y = {name: np.array([_path(category) for _, category in part]) for name, part in zip(SPLITS, rows, strict=True)}
    return Data(X, y, catnat.Taxonomy.from_paths(paths))


@functools.cache
def _texts(most: int) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return texts with their categories: descriptions, at most ``most`` of each category, and inclusion terms."""
    described: dict[str, list[str]] = {}
    included = []
    for code in icd.get_all_codes(True):
        if icd.is_chapter(code) or icd.is_block(code):
            continue
        category = code[:3]
        described.setdefault(category, []).append(icd.get_description(code))
        included += [(text, category) for text in icd.get_inclusion_term(code)]
    rng = np.random.default_rng(0)
    some = {key: rng.permutation(texts)[:most].tolist() for key, texts in described.items()}
    return [(text, category) for category, texts in some.items() for text in texts], included


@functools.cache
def _path(category: str) -> str:
    """Return the path of a category: chapter, block, category."""
    above = icd.get_ancestors(category)
    return "/".join([above[-1], above[0], category])


# ---- Ta Feng's supermarket: the subclass of a product, from the others in its basket ----

PURCHASES, ITEMS = 200, 4
"""The smallest numbers of purchases of a class, and of classes in a basket."""


PRICES = 50
"""The number of quantiles of the price of a piece, each a feature."""
_COLUMNS = {
    "TRANSACTION_DT": "day",
    "CUSTOMER_ID": "customer",
    "AGE_GROUP": "age",
    "PIN_CODE": "area",
    "PRODUCT_SUBCLASS": "label",
}


@functools.cache
def _baskets() -> tuple[Any, NDArray[Any], catnat.Taxonomy]:
    """Return one basket of every customer, with the subclass of one product as the label.

    The features are the price of this product, the other subclasses, the age group and the area. A subclass has six
    digits; the first two and the first four are its groups.
    """
    bought = purchases([*_COLUMNS, "AMOUNT", "SALES_PRICE"]).rename(columns=_COLUMNS)
    bought["price"] = pd.qcut(bought["SALES_PRICE"] / bought["AMOUNT"], PRICES, duplicates="drop").cat.codes
    bought = bought[bought.groupby("label")["label"].transform("size") >= PURCHASES]
    bought = bought.drop_duplicates(["day", "customer", "label"])
    bought = bought[bought.groupby(["day", "customer"])["label"].transform("size") >= ITEMS]
    bought = bought.sample(frac=1, random_state=0)  # so that the first row of a customer is random
    target = bought.drop_duplicates("customer")
    pairs = bought.merge(target, on=["customer", "day"], suffixes=("", "_of_target"))
    pairs = pairs[pairs["label"] != pairs["label_of_target"]]
    row = {customer: i for i, customer in enumerate(target["customer"])}
    about = [
        _indicators(target[each].fillna("unknown"), np.arange(len(target)), len(target))
        for each in ("price", "age", "area")
    ]
    others = _indicators(pairs["label"], pairs["customer"].map(row).to_numpy(), len(target))
    labels = target["label"].to_numpy(dtype=str)
    paths = [[label[:2], label[:4], label] for label in np.unique(bought["label"])]
    return sparse.hstack([others, *about], format="csr"), labels, catnat.Taxonomy.from_frame(paths)


def _indicators(values: pd.Series[str], rows: NDArray[np.int64], number: int) -> Any:
    """Return a column of zeros and ones for every value."""
    codes, names = pd.factorize(values, sort=True)
    return sparse.csr_matrix((np.ones(len(codes)), (rows, codes)), shape=(number, len(names)))
