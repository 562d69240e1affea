"""Numbers in the text of a page, compared with records.

A page is written by hand. A statement repeats some words of it, with numbers that are computed from records.
:func:`place` finds these words with any numbers, so that the numbers can be checked or replaced.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence

_DECIMAL = r"(?:[=<] )?[-−+]?\d[\d,]*\.\d+"
_NUMBER = r"(?:[=<] )?[-−+]?\d[\d,]*(?:\.\d+)?"
_NOT_TEXT = re.compile(r"^(`{3,}|:{3,}).*?^\1$|`[^`\n]*`|\]\([^)\n]*\)", re.DOTALL | re.MULTILINE)


class NotInPageError(ValueError):
    """The words of a statement are not in the page, or at several places."""


def place(page: str, statement: str) -> slice:
    """Return the place of a statement's words in a page, with the same or with other numbers.

    >>> place("Sigmoid has 77.1 nats.", "has 76.9 nats")
    slice(8, 21, None)
    """
    for number in ("(?!)", _DECIMAL, _NUMBER):  # the same numbers; other decimals; other numbers
        found = list(re.finditer(_pattern(statement, number), page))
        if len(found) == 1:
            return slice(*found[0].span())
        if found:
            raise NotInPageError(f"these words stand {len(found)} times, give more of them: {statement!r}")
    raise NotInPageError(f"these words do not stand there, whatever the numbers: {statement!r}")


def _pattern(statement: str, number: str) -> str:
    words = (r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in re.split(number, statement))
    return f"(?:{number})".join(words)


def written(page: str, statements: Iterable[str]) -> str:
    """Return the page with the numbers of its statements; a statement with the right numbers keeps its line breaks.

    >>> written("Sigmoid has 77.1 nats, softmax 79.5.", ["has 76.9 nats"])
    'Sigmoid has 76.9 nats, softmax 79.5.'
    """
    for statement in statements:
        at = place(page, statement)
        if page[at].split() != statement.split():
            page = page[: at.start] + statement + page[at.stop :]
    return page


def typed_decimals(page: str, statements: Sequence[str]) -> list[str]:
    """Return the decimals of a page that are in no statement, each with its line; code and links are left out.

    >>> typed_decimals("Sigmoid has 76.9 nats, softmax 79.5.", ["has 76.9 nats"])
    ['79.5: Sigmoid has 76.9 nats, softmax 79.5.']
    """
    covered = {index for at in (place(page, statement) for statement in statements) for index in _range(at)}
    covered |= {index for skipped in _NOT_TEXT.finditer(page) for index in range(*skipped.span())}
    starts = [0, *itertools.accumulate(len(line) for line in page.splitlines(keepends=True))]
    found = []
    for number in re.finditer(r"\d[\d,]*\.\d+", page):
        if number.start() not in covered:
            start = max(start for start in starts if start <= number.start())
            found.append(f"{number[0]}: {page[start:].partition(chr(10))[0]}")
    return found


def _range(at: slice) -> range:
    return range(at.start, at.stop)
