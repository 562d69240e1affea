"""Count the words of every page, and list its sentences that are too long to read at once.

Usage: ``python .ci/check_prose.py README.md docs/*.md``

Words are those of the prose: code, tables, formulas, directives and the addresses of links are left out. A few long
sentences are allowed, over all pages together. What a page includes is not part of it.
"""

from __future__ import annotations

import pathlib
import re
import sys

LONGEST = 30  # words of a sentence
ALLOWED = 10  # sentences over all pages that are longer
FIGURE = re.compile(r"^```\{figure\}[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MAKES_NO_PROSE = (  # besides the frame of a figure, whose caption is read
    re.compile(r"^(`{3,}).*?^\1$", re.MULTILINE | re.DOTALL),  # code, and directives in the same fences
    re.compile(r"<!--.*?-->|\$\$.*?\$\$", re.DOTALL),
    re.compile(r"^\s*\|.*$", re.MULTILINE),  # tables
    re.compile(r"^:{3,}.*$|^:[\w-]+:.*$", re.MULTILINE),  # fences of tabs and cards, and options of directives
    re.compile(r"^\(.*\)=$|</?\w[^>\n]*>|!\[[^\]]*\]\([^)]*\)|\{[^}\n]*\}", re.MULTILINE),
)
SENTENCE_ENDS = re.compile(r"(?<=[.!?])[)*\"”]*\s+|\n\s*\n|\n(?=\s*(?:[-*#]|\d+\.) )")
WORD = re.compile(r"[^\W\d_][\w'’.-]*")


def prose(page: str) -> str:
    """The page without what is not read as sentences. An inline formula or name in code counts as one word."""
    page = FIGURE.sub(r"\1", page)
    for pattern in MAKES_NO_PROSE:
        page = pattern.sub("\n", page)
    page = re.sub(r"`[^`\n]*`|\$[^$]+\$", "code", page)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", page)


def sentences(page: str) -> list[str]:
    return [" ".join(part.split()) for part in SENTENCE_ENDS.split(prose(page)) if part and WORD.search(part)]


def main(paths: list[pathlib.Path]) -> int:
    long, total = [], 0
    for path in paths:
        page = path.read_text(encoding="utf-8")
        words = len(WORD.findall(prose(page)))
        total += words
        print(f"{words:6d} {path}")
        found = [(len(WORD.findall(sentence)), sentence) for sentence in sentences(page)]
        long += [f"{path}: {count} words: {sentence}" for count, sentence in found if count > LONGEST]
    print(f"{total:6d} words; {len(long)} sentences have more than {LONGEST}, {ALLOWED} are allowed", *long, sep="\n")
    return len(long) > ALLOWED


if __name__ == "__main__":
    sys.exit(main([pathlib.Path(name) for name in sys.argv[1:]]))
