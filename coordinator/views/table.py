"""The style that all tables of the command line share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from coordinator.printable import clean


class PlainTable(Table):
    """A table whose cells are plain text: without markup, and without characters that could rewrite the terminal."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        """Add a row. Control characters in text cells become escapes."""
        super().add_row(*map(_plain, cells), **options)


def _plain(cell: Any) -> Any:
    if isinstance(cell, str):
        return Text(clean(cell))
    if isinstance(cell, Text) and not cell.plain.isprintable():
        cell.plain = clean(cell.plain)
    return cell


def new_table(*columns: str, right: Sequence[str] = ()) -> Table:
    """Return an empty table without borders.

    On a narrow terminal the longest columns wrap first. The first column, which holds ids and names, never wraps.

    Args:
        columns: The headings.
        right: The columns that are aligned to the right.
    """
    table = PlainTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        side = "right" if column in right else "left"
        table.add_column(column, justify=side, no_wrap=column == columns[0], overflow="fold")  # type: ignore[arg-type]
    return table
