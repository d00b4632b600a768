"""Tables for the terminal that fit 80 columns."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from treeagent.pipeline.recipes import Recipe
from treeagent.pipeline.report.describe import (
    SIGNAL_COLUMNS,
    SIGNAL_NOTE,
    Row,
    budget,
    cell,
    components,
    failures,
    headline,
    judgement,
    pass_at_n_note,
    result_columns,
    signal_cell,
)
from treeagent.pipeline.terminal import Terminal
from treeagent.visible import visible

_WORDS = {"policy", "mode"}


def narrow_table(headings: dict[str, bool]) -> Table:
    """An empty table without lines. ``headings`` maps each heading to whether its column holds words (else numbers)."""
    table = Table(box=None, collapse_padding=True, pad_edge=False, header_style="bold")
    for heading, words in headings.items():
        broken = heading.replace(" ", "\n", 1) if not words else heading
        table.add_column(broken, justify="left" if words else "right", overflow="fold", vertical="bottom")
    return table


def recipes_table(recipes: Sequence[Recipe]) -> Table:
    """A table with the name and the description of each recipe."""
    table = narrow_table({"recipe": True, "what it is for": True})
    table.columns[0].no_wrap, table.columns[0].vertical = True, "top"
    for recipe in recipes:
        table.add_row(Text(recipe.name), Text(recipe.sentence))
    return table


def results_table(rows: Sequence[Row]) -> Table:
    """A table with one row per policy and mode; the most successful rows are bold."""
    columns = result_columns(rows)
    table = narrow_table({heading: key in _WORDS for key, heading in columns.items()})
    table.caption, table.caption_justify = Text("\n".join(["", *map(visible, [headline(rows), *budget(rows)])])), "left"
    for column, key in zip(table.columns, columns, strict=True):
        column.no_wrap = key == "success"
    best = max((row["success"] for row in rows), default=None)
    for row in rows:
        style = "bold" if row["success"] == best else ""
        table.add_row(*(Text(visible(cell(row, key))) for key in columns), style=style)
    return table


def print_signal(name: str, rows: Sequence[Row], console: Terminal) -> None:
    """Print how well V separates states that led to a success from others, by depth.

    Args:
        name: name of the searched trees.
        rows: rows of ``value_signal``.
    """
    table = narrow_table(dict.fromkeys(SIGNAL_COLUMNS.values(), False))
    for row in rows:
        table.add_row(*(Text(visible(signal_cell(row, key))) for key in SIGNAL_COLUMNS))
    console.print(
        "", Text(f"How well V tells, {visible(name)}", style="bold"), table, Text(SIGNAL_NOTE, style="dim"), sep="\n"
    )


def print_results(rows: Sequence[Row], console: Terminal) -> None:
    """Print the table of results, sentences on what searches found and took, and the episodes that failed."""
    console.print("", results_table(rows), sep="\n")
    for sentence in (*pass_at_n_note(rows), *judgement(rows), *components(rows)):
        console.print(Text(visible(sentence)), soft_wrap=True)
    for sentence in failures(rows):
        console.print(Text(visible(sentence), style="yellow"), soft_wrap=True)
