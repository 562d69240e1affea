"""The numbers in the text of the README and of the pages on experiments, from the committed records.

The other files in this folder repeat pieces of the pages, with numbers that are computed from the records::

    python docs/statements            # fails if a page has other numbers, or a result that is in no statement
    python docs/statements --write    # writes the records' numbers into the pages

Long tables are not here. The documentation includes those that ``catnat-experiments report`` writes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import autoencoders
import binned
import defaults
import evidence
import games
import graphs
import identifiers
import order
import taxonomies
import world
from catnat_experiments.report.statements import NotInPageError, typed_decimals, written

ROOT = Path(__file__).parents[2]
PAGES: dict[str, tuple[Callable[[], Iterator[str]], str]] = {
    "README.md": (evidence.readme, evidence.CONSTANTS["readme"]),
    "docs/verdicts.md": (evidence.verdicts, evidence.CONSTANTS["verdicts"]),
    "docs/paper.md": (evidence.paper, evidence.CONSTANTS["paper"]),
    "docs/limits.md": (evidence.limits, evidence.CONSTANTS["limits"]),
    "docs/graph_structure.md": (graphs.page, graphs.CONSTANTS),
    "docs/vae.md": (autoencoders.page, autoencoders.CONSTANTS),
    "docs/games.md": (games.page, games.CONSTANTS),
    "docs/world_model.md": (world.page, world.CONSTANTS),
    "docs/identifiers.md": (identifiers.page, identifiers.CONSTANTS),
    "docs/order.md": (order.page, order.CONSTANTS),
    "docs/which_activation.md": (defaults.page, defaults.CONSTANTS),
    "docs/binned.md": (binned.page, binned.CONSTANTS),
    "docs/taxonomies.md": (taxonomies.page, taxonomies.CONSTANTS),
}
"""By page: the function that yields its statements, and decimals that are not results, such as learning rates."""


def complaints(name: str, *, write: bool) -> list[str]:
    """Return the errors of a page with their fixes, after writing its numbers if ``write``."""
    makes, constants = PAGES[name]
    path, statements = ROOT / name, list(makes())
    page = path.read_text()
    try:
        right = written(page, statements)
    except NotInPageError as error:
        return [f"{name}: {error}"]
    if write and right != page:
        path.write_text(right)
    if right != page and not write:
        changed = [new for old, new in zip(page.splitlines(), right.splitlines(), strict=False) if old != new]
        return [f"{name}: its numbers are not those of the records: `python docs/statements --write` writes", *changed]
    typed = [each for each in typed_decimals(right, statements) if each.partition(":")[0] not in constants.split()]
    return [f"{name}: no statement in docs/statements contains {each}" for each in typed]


def main(arguments: Sequence[str]) -> int:
    """Check all pages, or write them."""
    found = [each for name in PAGES for each in complaints(name, write="--write" in arguments)]
    print("\n".join(found) or f"{len(PAGES)} pages have the numbers of the records")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
