from __future__ import annotations

import pytest

from catnat_experiments.report.statements import NotInPageError, place, typed_decimals, written

PAGE = """Sigmoid is ahead by 2.6 nats
in 5 of 9 settings (p = 0.031).

| K | NLL |
| 8 | 76.9 ± 0.6 |
| 16 | 77.7 ± 0.7 |

```
rate=0.003  # code is no text
```
"""


def test_numbers_are_replaced_and_words_stay() -> None:
    statements = ["ahead by 3.1 nats in 9 of 9 settings (p < 0.0001)", "| 8 | 76.2 ± 0.5 |"]
    page = written(PAGE, statements)
    assert "ahead by 3.1 nats in 9 of 9 settings (p < 0.0001)." in page
    assert "| 8 | 76.2 ± 0.5 |\n| 16 | 77.7 ± 0.7 |" in page
    assert written(page, statements) == page


def test_a_page_that_is_right_keeps_its_line_breaks() -> None:
    assert written(PAGE, ["ahead by 2.6 nats in 5 of 9 settings"]) == PAGE


def test_integers_tell_the_rows_of_a_table_apart() -> None:
    assert PAGE[place(PAGE, "| 16 | 70.0 ± 0.1 |")] == "| 16 | 77.7 ± 0.7 |"


@pytest.mark.parametrize(
    ("statement", "reason"), [("behind by 2.6 nats", "do not stand there"), ("± 9.9 |", "stand 2 times")]
)
def test_other_words_are_refused(statement: str, reason: str) -> None:
    with pytest.raises(NotInPageError, match=reason):
        place(PAGE, statement)


def test_decimals_that_no_statement_gives_are_listed() -> None:
    typed = typed_decimals(PAGE, ["ahead by 2.6 nats in 5 of 9 settings (p = 0.031)", "| 8 | 76.9 ± 0.6 |"])
    assert typed == ["77.7: | 16 | 77.7 ± 0.7 |", "0.7: | 16 | 77.7 ± 0.7 |"]
