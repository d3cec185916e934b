"""The command `coordinator`: found a namespace, keep it going, hand over runs, look at them, change them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Annotated, Any, NoReturn
from uuid import uuid4

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from coordinator.cli import changes as cli_changes
from coordinator.cli import doctor as cli_doctor
from coordinator.cli import server as cli_server
from coordinator.cli.filters import LIST_MOST, Filters, Kind, Queue, Since, StatusIs
from coordinator.cli.inputs import parse_inputs
from coordinator.cli.options import BADLY, DONE, Here, command, complain, level_named, new_app
from coordinator.cli.options import main as run_app
from coordinator.cli.schedules import app as schedule_app
from coordinator.client.client import Client
from coordinator.client.handles import Handle
from coordinator.clock import SystemClock
from coordinator.errors import BadOption, NotFound, ResultTimeout, RunCancelled, RunFailed
from coordinator.model.durability import check_durability
from coordinator.model.run import Status
from coordinator.services.daemon import serve
from coordinator.services.retention import KEEP
from coordinator.store import server_checks as checks
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.transport.wire import Wire, drive
from coordinator.views.formatting import clean, format_count, format_value
from coordinator.views.json_data import to_json_data
from coordinator.views.namespace_display import status_summary
from coordinator.views.run_display import run_details, runs_table, suggest_kind

app = new_app("coordinator", "Durable runs on Redis or Valkey.")
app.add_typer(schedule_app, name="schedule")

SAY_WHY_AFTER, SAY_WHY_AGAIN = 2.0, 5.0
SHOWN_AT_ONCE = 20
_clock = SystemClock()


def main() -> NoReturn:
    run_app(app, "coordinator")


def _client(here: Here) -> Client:
    settings = here.settings
    return Client(settings.url, settings.namespace, settings.timeout)


# ---- the namespace and its coordinators --------------------------------------------------------------------------------


@command(app)
def init(
    here: Here,
    partitions: Annotated[int | None, typer.Option(min=1, max=1024, help="How many; fixed for good.")] = None,
    durability: Annotated[str | None, typer.Option(help="none, local, synced or replicated(1).")] = None,
) -> None:
    """Found a namespace: fix its partitions and its durability. Else its first user takes the defaults."""
    settings = here.settings
    if durability is not None:
        check_durability(durability)
    wire = Wire(settings.address, settings.timeout)
    try:
        found = drive(wire, checks.examine(settings.address, settings.namespace, durability, partitions=partitions))
        checks.refuse(found)
        birth = uuid4().hex
        space = drive(
            wire, namespace_plans.create(settings.namespace, birth=birth, partitions=partitions, durability=durability)
        )
    finally:
        wire.close()
    for finding in found:
        logging.getLogger(__name__).warning("%s", finding.sentence)
    founded = space.birth == birth
    facts = {
        "namespace": space.name,
        "partitions": space.partitions,
        "durability": space.durability,
        "founded": founded,
    }
    here.answer(
        facts,
        Text(
            f"namespace {space.name} on {settings.address} {'is founded' if founded else 'was there already'}: "
            f"{format_count(space.partitions, 'partition')}, durability {space.durability}"
        ),
    )


@command(app)
def start(
    here: Here,
    health: Annotated[
        str | None, typer.Option(envvar="RUNS_HEALTH", metavar="[HOST:]PORT", help="Answer /live and /ready there.")
    ] = None,
    log_level: Annotated[str, typer.Option(envvar="RUNS_LOG_LEVEL", help="DEBUG, INFO or WARNING.")] = "INFO",
    keep: Annotated[
        int, typer.Option(envvar="RUNS_KEEP", min=0, help="Ended runs that are kept, of each status in each partition.")
    ] = KEEP,
) -> None:
    """Run a coordinator until TERM or INT. Several may run at once."""
    here.log_from(level_named(log_level))
    settings = here.settings
    asyncio.run(serve(replace(settings, timeout=30.0) if here.timeout is None else settings, health=health, keep=keep))


# ---- handing over ----------------------------------------------------------------------------------------------------


@command(app)
def enqueue(
    here: Here,
    kind: Annotated[str, typer.Argument(help="The kind of the run: its handler's name.")],
    pairs: Annotated[
        list[str] | None, typer.Argument(metavar="[name=text | name:=json]...", show_default=False)
    ] = None,
    inputs: Annotated[str | None, typer.Option(metavar="JSON|@FILE|-", help="All inputs as a JSON object.")] = None,
    count: Annotated[int, typer.Option(min=1, max=10_000_000, help="How many such runs.")] = 1,
    delay: Annotated[float | None, typer.Option(metavar="S", help="Not before so many seconds.")] = None,
    priority: Annotated[int, typer.Option(help="-100 to 100; the highest is taken first.")] = 0,
    key: Annotated[str | None, typer.Option(help="Once only: the same key finds the same run.")] = None,
    queue: Annotated[str, typer.Option(help="The queue.")] = "default",
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the results and print them.")] = False,
) -> int:
    """Hand over a run, or many."""
    values = parse_inputs(pairs or [], inputs)
    if key is not None and count > 1:
        raise BadOption("--key finds one run: leave out --count, or the key")
    with _client(here) as client:
        if count == 1:
            handles = [client.enqueue(kind, values, queue=queue, priority=priority, delay=delay, key=key)]
        else:
            with _progress(here, f"enqueue {kind}", count) as advance:
                runs = ((kind, values) for _ in advance())
                handles = client.enqueue_many(runs, queue=queue, priority=priority, delay=delay)
        if wait:
            return _await_results(here, client, handles)
        _say_enqueued(here, handles)
        return DONE


def _say_enqueued(here: Here, handles: list[Handle[Any]]) -> None:
    if here.as_json:
        here.answer({"runs": [{"id": handle.id, "created": handle.created} for handle in handles]})
    elif len(handles) > SHOWN_AT_ONCE and here.console.is_terminal:
        here.console.print(Text(f"{format_count(len(handles), 'run')} enqueued: {handles[0].id} to {handles[-1].id}"))
    else:
        here.console.out("\n".join(handle.id for handle in handles))
    if len(handles) == 1 and not here.as_json:
        view = handles[0].view()
        if not handles[0].created:
            here.aside.print(Text(f"the key found this run; it is {view.status}: {clean(view.why)}", "yellow"))
        elif view.status is Status.QUEUED and view.why.startswith("no live worker"):
            here.aside.print(Text(f"{clean(view.why)} yet: it waits for one", "yellow"))
        elif view.status is Status.QUEUED and view.why.endswith("is paused"):
            here.aside.print(Text(f"{clean(view.why)}: it waits until that is over", "yellow"))


def _await_results(here: Here, client: Client, handles: list[Handle[Any]]) -> int:
    endings: dict[str, dict[str, Any]] = {}
    with _progress(here, "wait", len(handles)) as advance:
        for _, handle in zip(advance(), _in_order_of_ending(here, client, handles), strict=False):
            endings[handle.id] = {"id": handle.id, "created": handle.created, **_ending(handle)}
    rows = [endings[handle.id] for handle in handles]
    if here.as_json:
        here.answer({"runs": rows})
    else:
        for row in rows:
            _say_ending(here, row, alone=len(rows) == 1)
    return DONE if all(row["status"] == Status.COMPLETED for row in rows) else BADLY


def _in_order_of_ending(here: Here, client: Client, handles: list[Handle[Any]]) -> Iterator[Handle[Any]]:
    """Who waits is told what for: a typo in the kind or in an input would else be waited for in silence."""
    left, said = {handle.id: handle for handle in handles}, ""
    patience = SAY_WHY_AFTER
    while left:
        try:
            for handle in client.wait(list(left.values()), timeout=patience):
                del left[handle.id]
                yield handle
        except ResultTimeout:
            view = next(iter(left.values())).view()
            told = f"run {view.id} is {view.status}: {clean(view.why)}"
            if view.status in (Status.QUEUED, Status.DELAYED) and told != said:
                here.aside.print(Text(told, "yellow"))
                said = told
            patience = SAY_WHY_AGAIN


def _ending(handle: Handle[Any]) -> dict[str, Any]:
    try:
        return {"status": Status.COMPLETED, "result": handle.result()}
    except RunFailed as error:
        return {"status": handle.wait(), "error": f"{error.type}: {error.message}" if error.type else error.message}
    except RunCancelled as error:
        return {"status": Status.CANCELLED, "error": str(error)}


def _say_ending(here: Here, row: dict[str, Any], *, alone: bool) -> None:
    if row["status"] != Status.COMPLETED:
        complain(f"run {row['id']} ended as {row['status']}: {clean(row['error'])}")
        return
    text = format_value(row["result"])
    here.console.out(text if alone else f"{row['id']}  {' '.join(text.split())}")


class _progress:  # noqa: N801  # used as a function
    """A bar on stderr while something is counted; nothing where nobody looks. `advance()` counts as it is walked through."""

    def __init__(self, here: Here, what: str, total: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        silent = here.as_json or not here.aside.is_terminal
        self._bar = Progress(*columns, console=here.aside, transient=True, disable=silent)
        self._task, self._total = self._bar.add_task(what, total=total), total

    def __enter__(self) -> Callable[[], Iterator[int]]:
        self._bar.start()
        return self._advance

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def _advance(self) -> Iterator[int]:
        for number in range(self._total):
            yield number
            self._bar.advance(self._task)


# ---- looking ---------------------------------------------------------------------------------------------------------


@command(app)
def status(here: Here) -> None:
    """The namespace at a glance."""
    with _client(here) as client:
        overview = client.status()
    here.answer(overview, status_summary(overview, str(here.settings.address)))


@command(app)
def runs(
    here: Here,
    status: StatusIs = None,
    kind: Kind = None,
    queue: Queue = None,
    since: Since = None,
    limit: Annotated[int, typer.Option(min=1, max=LIST_MOST, help="At most so many.")] = 100,
    stuck: Annotated[bool, typer.Option("--stuck", help="Only what waits for somebody who is not there.")] = False,
) -> None:
    """List runs, newest first; those that wait in the order in which they are taken."""
    filters = Filters(status, kind, queue, since)
    with _client(here) as client:
        found = filters.find_stuck(client, limit) if stuck else filters.find(client, limit)
    here.answer(found, runs_table(found, _clock.now()) if found else Text("no runs"))
    if len(found) == limit and not here.as_json:
        here.aside.print(Text(f"the first {limit:,}; --limit shows more", "dim"))


@command(app, name="show")
def show_run(here: Here, run: Annotated[str, typer.Argument(metavar="RUN", help="The id of a run.")]) -> None:
    """Everything about one run: where it is, why, what it has done, its inputs, its result or its error."""
    with _client(here) as client:
        handle = client.handle(run)
        view = handle.view()
        advice = suggest_kind(view, client.workers())
        result = _kept_result(handle) if view.status is Status.COMPLETED else {}
    here.answer({**to_json_data(view), **result}, run_details(view, _clock.now(), advice))
    if result and not here.as_json:
        here.console.print(Text("result", "dim"))
        here.console.out(format_value(result["result"]))


def _kept_result(handle: Handle[Any]) -> dict[str, Any]:
    try:
        return {"result": handle.result()}
    except NotFound:  # enqueued with retention=0
        return {}


# ---- changing --------------------------------------------------------------------------------------------------------

cli_changes.add_to(app)
command(app)(cli_server.check)
command(app, name="acl")(cli_server.rights)
command(app)(cli_doctor.pause)
command(app)(cli_doctor.unpause)
command(app, name="doctor")(cli_doctor.examine)


if __name__ == "__main__":
    main()
