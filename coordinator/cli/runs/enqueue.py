"""The command enqueue: enqueue one run or many, and optionally wait for their results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from coordinator.cli.framework.context import CommandContext
from coordinator.cli.framework.exits import DONE, PROBLEM, print_error
from coordinator.cli.framework.inputs import InputPairs, InputsOption, PriorityOption, parse_inputs
from coordinator.client.client import Client
from coordinator.client.handles import Handle
from coordinator.clock import SystemClock
from coordinator.errors import BadOption, ResultTimeout, RunCancelled, RunFailed
from coordinator.model.run import Status
from coordinator.views.formatting import clean, format_count, format_value
from coordinator.views.run_display import suggest_kind

_clock = SystemClock()

# Seconds without an ending after which the command prints why a run waits: the first time, and each time after that.
EXPLAIN_AFTER, EXPLAIN_AGAIN = 2.0, 5.0
TIMEOUT_REMARK = (
    "--timeout limits how long the command waits for an answer of the server, not for the end of a run: "
    "use --wait-timeout for that, or press Ctrl-C; the run continues"
)
MAX_IDS_PRINTED = 20  # on a terminal; a file or a pipe gets all of them


def enqueue(
    context: CommandContext,
    kind: Annotated[str, typer.Argument(help="Kind of the run: the name of its handler.")],
    pairs: InputPairs = None,
    inputs: InputsOption = None,
    count: Annotated[int, typer.Option(min=1, max=10_000_000, help="Number of runs to enqueue.")] = 1,
    delay: Annotated[float | None, typer.Option(metavar="S", help="Seconds to wait before the run may start.")] = None,
    priority: PriorityOption = 0,
    key: Annotated[
        str | None,
        typer.Option(help="Idempotency key: if a run with this key exists, it is returned instead of a new one."),
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Group of the run, for kinds that have a limit for each group.")
    ] = None,
    queue: Annotated[str, typer.Option(help="Name of the queue.")] = "default",
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the runs have ended, and print their results.")
    ] = False,
    wait_timeout: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="S", help="Wait, but at most S seconds. The runs continue. Default: --wait has no limit."
        ),
    ] = None,
) -> int:
    """Enqueue one run, or many with --count, and print the ids.

    With --wait or --wait-timeout, the command exits with 1 if a run did not complete.
    """
    values = parse_inputs(pairs or [], inputs)
    if key is not None and count > 1:
        raise BadOption("--key identifies one run: leave out --key or --count")
    if wait_timeout is not None and math.isnan(wait_timeout):
        raise BadOption("--wait-timeout nan is not a number of seconds")
    with context.connect() as client:
        if count == 1:
            handles = [client.enqueue(kind, values, queue=queue, priority=priority, delay=delay, key=key, group=group)]
        else:
            with _ProgressBar(context, f"enqueue {kind}", count) as advance:
                runs = ((kind, values) for _ in advance())
                handles = client.enqueue_many(runs, queue=queue, priority=priority, delay=delay, group=group)
        if wait or wait_timeout is not None:
            return _wait_for_results(context, client, handles, wait_timeout)
        _print_ids(context, client, handles)
        return DONE


def _print_ids(context: CommandContext, client: Client, handles: list[Handle[Any]]) -> None:
    if context.as_json:
        context.answer({"runs": [{"id": handle.id, "created": handle.created} for handle in handles]})
        return
    if len(handles) > MAX_IDS_PRINTED and context.console.is_terminal:
        first, last = handles[0].id, handles[-1].id
        context.console.print(Text(f"{format_count(len(handles), 'run')} enqueued: {first} to {last}"))
    else:
        context.console.out("\n".join(handle.id for handle in handles))
    if len(handles) == 1 and (remark := _remark(client, handles[0])):
        context.stderr.print(Text(remark, "yellow"))


def _remark(client: Client, handle: Handle[Any]) -> str:
    """Return a remark if the run already existed, has no live worker or is paused; otherwise an empty string."""
    view = handle.view()
    if not handle.created:
        return f"a run with this key exists; it is {view.status}: {clean(view.why)}"
    if view.status is Status.QUEUED and view.why.startswith("no live worker"):
        hint = suggest_kind(view.kind, client.workers())
        return f"{clean(view.why)}; the run waits for one" + (f"; {hint}" if hint else "")
    if view.status is Status.QUEUED and view.why.endswith("is paused"):
        return f"{clean(view.why)}; the run waits until it is unpaused"
    return ""


def _wait_for_results(
    context: CommandContext, client: Client, handles: list[Handle[Any]], wait_timeout: float | None
) -> int:
    endings: dict[str, dict[str, Any]] = {}
    with _ProgressBar(context, "wait", len(handles)) as advance:
        ended = _Endings(context, client, handles, wait_timeout)
        for _, handle in zip(advance(), ended, strict=False):
            endings[handle.id] = {"id": handle.id, "created": handle.created, **_ending(handle)}
    rows = [endings.get(handle.id) or _not_ended(handle, wait_timeout) for handle in handles]
    if context.as_json:
        context.answer({"runs": rows})
    else:
        for row in rows:
            _print_ending(context, row, with_id=len(rows) > 1)
    return DONE if all(row["status"] == Status.COMPLETED for row in rows) else PROBLEM


class _Endings:
    """An iterator over handles: it yields each handle when its run has ended, and ends when the time is over.

    While no run ends, it prints why the first run waits. Otherwise a typo in the kind would make the command wait forever without
    a message.
    """

    def __init__(
        self, context: CommandContext, client: Client, handles: list[Handle[Any]], wait_timeout: float | None
    ) -> None:
        self._context, self._client = context, client
        self._left = {handle.id: handle for handle in handles}
        begun = _clock.monotonic()
        self._until = math.inf if wait_timeout is None else begun + wait_timeout
        self._printed = ""
        # The time after which the command says that --timeout does not limit --wait.
        limited = wait_timeout is not None or context.typed_timeout is None
        self._remark_at = math.inf if limited else begun + (context.typed_timeout or 0.0)

    def __iter__(self) -> Iterator[Handle[Any]]:
        patience = EXPLAIN_AFTER
        while self._left:
            timeout = min(patience, max(0.0, min(self._until, self._remark_at) - _clock.monotonic()))
            try:
                for handle in self._client.wait(list(self._left.values()), timeout=timeout):
                    del self._left[handle.id]
                    yield handle
            except ResultTimeout:
                if _clock.monotonic() >= self._until:
                    return
                self._explain()
                patience = EXPLAIN_AGAIN

    def _explain(self) -> None:
        view = next(iter(self._left.values())).view()
        hint = suggest_kind(view.kind, self._client.workers()) if view.status is Status.QUEUED else ""
        text = f"run {view.id} is {view.status}: {clean(view.why)}" + (f"; {hint}" if hint else "")
        if view.status in (Status.QUEUED, Status.DELAYED, Status.WAITING) and text != self._printed:
            self._context.stderr.print(Text(text, "yellow"))
            self._printed = text
        if _clock.monotonic() >= self._remark_at:
            self._remark_at = math.inf
            self._context.stderr.print(Text(TIMEOUT_REMARK, "yellow"))


def _ending(handle: Handle[Any]) -> dict[str, Any]:
    try:
        return {"status": Status.COMPLETED, "result": handle.result()}
    except RunFailed as error:
        return {"status": handle.wait(), "error": f"{error.type}: {error.message}" if error.type else error.message}
    except RunCancelled as error:
        return {"status": Status.CANCELLED, "error": str(error)}


def _not_ended(handle: Handle[Any], wait_timeout: float | None) -> dict[str, Any]:
    view, row = handle.view(), {"id": handle.id, "created": handle.created}
    if view.status.ended:  # it has ended since the last look
        return {**row, **_ending(handle)}
    return {**row, "status": view.status, "error": f"it has not ended after {wait_timeout or 0:g} s: {view.why}"}


def _print_ending(context: CommandContext, row: dict[str, Any], *, with_id: bool) -> None:
    if row["status"] != Status.COMPLETED:
        how = "ended as" if Status(row["status"]).ended else "is"
        print_error(f"run {row['id']} {how} {row['status']}: {clean(row['error'])}")
        return
    text = format_value(row["result"])
    context.console.out(f"{row['id']}  {' '.join(text.split())}" if with_id else text)


class _ProgressBar:
    """A context manager that shows a progress bar on stderr. The bar is hidden with --json, or if stderr is not a terminal.

    `with` returns a function. The function returns an iterator over the numbers from 0 to total - 1, which moves the bar after
    each number.
    """

    def __init__(self, context: CommandContext, what: str, total: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        hidden = context.as_json or not context.stderr.is_terminal
        self._bar = Progress(*columns, console=context.stderr, transient=True, disable=hidden)
        self._task, self._total = self._bar.add_task(what, total=total), total

    def __enter__(self) -> Callable[[], Iterator[int]]:
        if not self._bar.disable:
            self._bar.start()
        return self._advance

    def __exit__(self, *_: object) -> None:
        if not self._bar.disable:  # rich 14.1 and older print an empty line for a bar that is disabled
            self._bar.stop()

    def _advance(self) -> Iterator[int]:
        for number in range(self._total):
            yield number
            self._bar.advance(self._task)
