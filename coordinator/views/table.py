"""The style that all tables of the command line share."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table


def new_table(*columns: str, right: Sequence[str] = ()) -> Table:
    """Return an empty table without borders.

    On a narrow terminal the longest columns wrap first. The first column, which holds ids and names, never wraps.

    Args:
        columns: The headings.
        right: The columns that are aligned to the right.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        side = "right" if column in right else "left"
        table.add_column(column, justify=side, no_wrap=column == columns[0], overflow="fold")  # type: ignore[arg-type]
    return table
