"""Format events and the board for a terminal. This module does no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from coordinator.feed.board import Board, ProcessRow, QueueRow
from coordinator.feed.events import RunEvent, RunLook
from coordinator.model.run import Status
from coordinator.views.formatting import clean, format_duration, format_size
from coordinator.views.namespace_display import has_coordinator
from coordinator.views.run_display import STATUS_STYLES
from coordinator.views.table import PlainTable, new_table

_BARS = "▁▂▃▄▅▆▇█"
_STATES = {"working": "green", "draining": "yellow", "silent": "red", "gone": "bold red"}
_BAR_WIDTH = 10
_CODE_WIDTH = 8
_LEAST_EVENTS = 3
_FIXED_LINES = 7  # the head, the counts, two headings, three empty lines


def event_line(event: RunEvent) -> Text:
    """Return one line for an event: its time, its run, and the change."""
    moment = datetime.fromtimestamp(event.at, UTC).astimezone()
    line = Text(moment.strftime("%H:%M:%S.") + f"{moment.microsecond // 1000:03}  ", "dim", no_wrap=True)
    line.append(f"{event.status!s:<9}  ", STATUS_STYLES[event.status])
    line.append(event.run, "default").append(f"  {clean(event.kind)}", "bold")
    if event.attempt:
        line.append(f"  attempt {event.attempt}", "default")
    if event.worker and event.status is Status.RUNNING:
        line.append(f" on {clean(event.worker)}", "default")
    if event.cause:
        line.append(f"  after {clean(event.cause)}", "yellow")
    if event.reason:
        line.append(f"  {clean(event.reason)}".partition("\n")[0], "dim")
    if event.missed:
        line.append(f"  {event.missed} more between", "dim")
    return line


def sparkline(numbers: Sequence[int], width: int) -> str:
    """Return numbers as a row of at most `width` bars. A bar is the sum of some numbers; the largest sum has the highest bar."""
    if not numbers:
        return ""
    step = max(1, -(-len(numbers) // width))
    end = len(numbers)
    sums = [sum(numbers[max(0, end - (i + 1) * step) : end - i * step]) for i in range(-(-end // step))][::-1]
    top = max(sums) or 1
    return "".join(_BARS[round(number * (len(_BARS) - 1) / top)] if number else " " for number in sums)


def board_frame(board: Board, address: str, width: int, height: int) -> RenderableType:
    """Return the board for a terminal of this size. Rows that do not fit are left out, and a line says how many.

    Args:
        board: The board.
        address: The address of the server, which is shown.
        width: The width of the terminal in columns.
        height: The height of the terminal in lines.
    """
    if board.overview is None:
        return Text(board.error or f"connecting to {address} …", "yellow" if board.error else "dim")
    queues, processes, attention = board.queues(), board.processes(), board.attention()
    room = max(3, height - _FIXED_LINES - _LEAST_EVENTS)
    sentences = _fitting(attention, max(1, room // 3))
    room -= len(attention[:sentences]) + (sentences < len(attention))
    kinds = _fitting(queues, max(room // 3, room - len(processes)))
    room -= kinds + (kinds < len(queues))
    parts: list[RenderableType] = [_head(board, address, width), _counts(board), Text()]
    if kinds:
        parts += [_queues_table(queues[:kinds], width)]
    if kinds < len(queues):
        parts += [Text(f"and {len(queues) - kinds} more kinds", "dim")]
    rows = _workers_table(processes, room, width)
    parts += [Text(), rows if rows.row_count else Text("no workers", "dim")]
    parts += [_sentence(text) for text in attention[:sentences]]
    if sentences < len(attention):
        parts += [_sentence(f"and {len(attention) - sentences} more")]
    parts += [Text()]
    left = height - sum(part.row_count + 1 if isinstance(part, PlainTable) else 1 for part in parts)
    parts += [event_line(event) for event in list(board.events)[: max(_LEAST_EVENTS, left)]]
    return Group(*parts)


def _fitting(items: Sequence[object], lines: int) -> int:
    """Return how many items are shown on this number of lines. If there are more items, one line says how many."""
    return len(items) if len(items) <= lines else max(1, lines - 1)


def _sentence(text: str) -> Text:
    return Text("! " + clean(text), "yellow", no_wrap=True, overflow="ellipsis")


def _head(board: Board, address: str, width: int) -> Table:
    assert board.overview is not None
    grid = Table.grid(expand=False, pad_edge=False)
    grid.width = width
    grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    grid.add_column(no_wrap=True, justify="right")
    state = Text("  ").append("unreachable  " if board.error else "", "bold red")
    clock = datetime.fromtimestamp(board.now, UTC).astimezone().strftime("%H:%M:%S")
    coordinators = Text() if has_coordinator(board.overview) else Text("no coordinator  ", "bold yellow")
    name = Text(board.overview.namespace, "bold").append(f"  {clean(address)}", "not bold dim")
    grid.add_row(name, state.append(coordinators).append(clock, "dim"))
    return grid


def _counts(board: Board) -> Text:
    assert board.overview is not None
    line = Text(no_wrap=True, overflow="ellipsis")
    for status in Status:
        number = board.overview.counts.get(status, 0)
        if number or status in (Status.QUEUED, Status.RUNNING, Status.COMPLETED):
            line.append(f"{number:,} ", STATUS_STYLES[status] if number else "dim").append(f"{status}  ", "dim")
    return line.append(f"{board.rates.rate(board.now):.1f}", "bold").append(" ended/s", "dim")


def _queues_table(rows: Sequence[QueueRow], width: int) -> Table:
    table = new_table(
        "kind", "queue", "queued", "oldest", "running", "ended/s", "", right=("queued", "oldest", "running", "ended/s")
    )
    names = max(len(row.kind) for row in rows) + max(len(row.queue) for row in rows)
    bars = max(_BAR_WIDTH, min(40, width - 46 - names))
    for row in rows:
        state = Text("paused", "yellow") if row.paused else Text("no worker", "red") if not row.workers else Text("")
        spark = Text(sparkline(row.history, bars), "green")
        table.add_row(
            row.kind, row.queue, Text(f"{row.queued:,}", "cyan" if row.queued else "dim"),
            "" if row.age is None else format_duration(row.age), Text(str(row.running), "green" if row.running else "dim"),
            f"{row.rate:.1f}", state if state.plain else spark,
        )  # fmt: skip
    return _on_one_line(table, width, "queue", "kind")


def _workers_table(rows: Sequence[ProcessRow], lines: int, width: int) -> Table:
    table = new_table("worker", "code", "slots", "", "memory", "state", right=("slots", "memory"))
    shown = _fitting(rows, lines)
    for row in rows[:shown]:
        use = row.use
        filled = -(-use.busy * _BAR_WIDTH // max(1, use.slots))
        bar = Text("█" * filled, "green").append("░" * (_BAR_WIDTH - filled), "dim")
        age = f" {format_duration(row.lease_age)}" if row.state in ("silent", "gone") else ""
        finishing = f", {use.remark}" if use.remark else ""
        table.add_row(
            _place(row.host, row.pid, width // 3), row.code[:_CODE_WIDTH], f"{use.busy}/{use.slots}", bar,
            format_size(row.memory), Text(row.state + age, _STATES[row.state]).append(finishing + _kinds(row), "dim"),
        )  # fmt: skip
    if shown < len(rows):
        table.add_row(f"and {len(rows) - shown} more", "", "", "", "", "")
    return _on_one_line(table, width, "state")


def _place(host: str, pid: int, width: int) -> str:
    """Return the host and the process id. Of a long host, the domain is left out, and then its middle."""
    host, room = clean(host), max(3, width - len(f":{pid}"))
    if len(host) > room:
        host = host.partition(".")[0]
    if len(host) > room:  # the ends of pods' names are what differs
        host = f"{host[: room // 2]}…{host[len(host) - (room - 1) // 2 :]}"
    return f"{host}:{pid}"


def _on_one_line(table: Table, width: int, *elastic: str) -> Table:
    """Make each row of a table one line: the elastic columns get the room that the others leave, and their cells are cut."""
    wanted: dict[str, int] = {}
    for column in table.columns:
        column.no_wrap, column.overflow = True, "ellipsis"
        wanted[str(column.header)] = max(cell_len(str(cell)) for cell in (column.header, *column.cells))
    room = width - sum(wanted.values()) - 2 * (len(table.columns) - 1) + sum(wanted[name] for name in elastic)
    for count, name in zip(range(len(elastic), 0, -1), elastic, strict=True):
        (column,) = (column for column in table.columns if column.header == name)
        column.max_width = max(1, min(wanted[name], room // count))
        room -= column.max_width
    return table


def _kinds(row: ProcessRow) -> str:
    names = sorted({run.kind for run in row.runs if isinstance(run, RunLook)})
    return f"  {', '.join(names)}" if names else ""
