"""Tables for a terminal."""

from __future__ import annotations

from rich.table import Table as RichTable

from catnat_experiments.report.cells import body_cells
from catnat_experiments.report.tables import Numbers


def rich_table(numbers: Numbers) -> RichTable:
    """The table for a terminal."""
    table = numbers.table
    judged = f" ({table.better} is better)" if table.better is not None else ""
    shown = RichTable(title=table.title + judged, title_justify="left")
    for heading in [numbers.heading, *table.all_columns]:
        shown.add_column(heading)
    for cells in body_cells(numbers, "[bold]", "[/bold]"):
        shown.add_row(*cells)
    return shown
