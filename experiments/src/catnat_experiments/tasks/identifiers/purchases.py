"""A catalogue in place of source code: the next purchases of a supermarket's customers."""

from __future__ import annotations

import functools
import hashlib

import numpy as np
import pandas as pd

from catnat_experiments.common.ta_feng import purchases
from catnat_experiments.tasks.identifiers.corpus import END, VALIDATION, Corpus, without_rare

BASKET = "<basket>"
"""The token between two baskets of a customer; :data:`END` stands after the last one."""


@functools.cache
def load() -> Corpus:
    """Return the products that each customer bought, by time; a twentieth of the customers are for validation."""
    bought = purchases(["TRANSACTION_DT", "CUSTOMER_ID", "PRODUCT_ID"])
    bought["day"] = pd.to_datetime(bought["TRANSACTION_DT"], format="%m/%d/%Y")
    bought = bought.sort_values(["CUSTOMER_ID", "day"], kind="stable")
    customers, products = (bought[name].to_numpy() for name in ("CUSTOMER_ID", "PRODUCT_ID"))
    number, names = pd.factorize(products)
    words = [*names, BASKET, END]
    basket, end = len(names), len(names) + 1
    new_customer = np.append(customers[1:] != customers[:-1], True)
    new_basket = np.append(bought["day"].to_numpy()[1:] != bought["day"].to_numpy()[:-1], False) & ~new_customer
    after = np.where(new_customer, end, np.where(new_basket, basket, -1))
    tokens = np.stack([number, after], axis=1)
    validates = np.repeat([_place(customer) < VALIDATION for customer in customers], 2).reshape(-1, 2)
    train, validation = (tokens[(tokens >= 0) & part].astype(np.int32) for part in (~validates, validates))
    return without_rare(train, validation, words)


@functools.cache
def _place(customer: str) -> float:
    """Return a number from 0 to 1 that decides a customer's part."""
    return int(hashlib.sha256(customer.encode()).hexdigest()[:12], 16) / 16**12
