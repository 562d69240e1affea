"""A page from records: tables as in the paper, the paper's numbers beside ours, tests and plots.

An experiment describes its tables with ``Table`` objects (``tables.py``). The page is made from these and the records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from catnat_experiments.engine import files
from catnat_experiments.engine.stages import StageStatus
from catnat_experiments.report.claims import claims, closeness
from catnat_experiments.report.markdown import chosen_table, legend, main_table, p_tables, row_tables
from catnat_experiments.report.robust import robust
from catnat_experiments.report.tables import Numbers, Table, done_records, fill
from catnat_experiments.report.together import paired_claims, paired_runs

PRELIMINARY = "**Preliminary: "
"""The start of the sentence on missing runs, on a page or in a table's section."""


def write(
    name: str,
    preset: str,
    statuses: Sequence[StageStatus],
    tables: Sequence[Table],
    directory: Path,
    *,
    summary: bool = False,
) -> Path:
    """Write ``README.md`` and its plots into a directory, and return the path of the page.

    A summary contains only the comparisons over all cells, without a section for each table.
    """
    directory.mkdir(parents=True, exist_ok=True)
    parts = [f"# {name}, preset {preset}", _origin(name, preset, statuses)]
    filled = [fill(table, statuses) for table in tables]
    parts += paired_claims(filled)
    parts += [part for numbers in filled for part in paired_runs(numbers)]
    for numbers in () if summary else filled:
        parts += _section(numbers, statuses, directory)
    page = directory / "README.md"
    files.write_atomically(page, ("\n\n".join(part for part in parts if part) + "\n").encode())
    return page


def _origin(name: str, preset: str, statuses: Sequence[StageStatus]) -> str:
    done = done_records(statuses)
    if not done:
        return f"{PRELIMINARY}no run is finished yet.**"
    hours = sum(record.seconds for record in done) / 3600
    made = Counter(", ".join(f"{key} {value}" for key, value in sorted(record.versions.items())) for record in done)
    commits = sorted({record.commit for record in done if record.commit})
    return (
        f"{len(done)} runs, {hours:.2f} core-hours. Made with {'; or '.join(made)}"
        f"{', at commit ' + ', '.join(commits) if commits else ''}. "
        f"This page: `catnat-experiments report {name} --preset {preset}`."
    )


def _section(numbers: Numbers, statuses: Sequence[StageStatus], directory: Path) -> list[str]:
    from catnat_experiments.report import plots  # matplotlib takes a second to import

    table = numbers.table
    if not numbers.rows:
        return []
    parts = [f"## {table.title}", _preliminary(table, statuses)]
    if table.listed:
        parts += [*row_tables(numbers), legend(numbers), table.note]
    else:
        parts += [main_table(numbers), legend(numbers), table.note, *p_tables(numbers), chosen_table(numbers)]
    parts += [closeness(numbers), *claims(numbers), *robust(numbers)]
    images = {table.title: plots.plot_table(numbers, directory)}
    drawn = {
        f"{table.title}: {curve.title or curve.name}": plots.plot_curve(numbers, curve, directory)
        for curve in table.curves
    }
    images |= {title: path for title, path in drawn.items() if path is not None}
    return [*parts, *(f"![{title}]({path.name})" for title, path in images.items())]


def _preliminary(table: Table, statuses: Sequence[StageStatus]) -> str:
    shown = [status for status in statuses if status.stage.name in table.stages]
    missing = sum(status.missing for status in shown)
    if any(status.done and not status.settled for status in shown):
        return (
            f"{PRELIMINARY}a stage before this table's is not complete, so other runs may be selected in the end; "
            f"about {missing} runs of this table are missing.**"
        )
    return f"{PRELIMINARY}{missing} runs of this table are missing.**" if missing else ""
