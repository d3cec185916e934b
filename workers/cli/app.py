"""The command `workers`: start workers, see them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.text import Text

from coordinator.cli.options import Here, command, level_named, new_app
from coordinator.cli.options import main as run_app
from coordinator.client.client import Client
from coordinator.views.namespace_display import workers_table
from workers.cli import dev as cli_dev
from workers.cli import fleet as cli_fleet
from workers.program.name_clash import refuse_in_the_way

app = new_app("workers", "Workers for durable runs.")


def main() -> NoReturn:
    run_app(app, "workers")


@command(app)
def start(
    here: Here,
    registries: Annotated[list[str], typer.Argument(metavar="MODULE:REGISTRY...", help="As in app:runs.")],
    processes: Annotated[int, typer.Option(min=1, max=1000, envvar="RUNS_PROCESSES", help="How many.")] = 1,
    concurrency: Annotated[int, typer.Option(envvar="RUNS_CONCURRENCY", help="Runs at once in a process.")] = 100,
    queues: Annotated[str, typer.Option(envvar="RUNS_QUEUES", metavar="A,B", help="Whose runs to take.")] = "default",
    grace: Annotated[float, typer.Option(envvar="RUNS_GRACE", metavar="S", help="How long a stop may take.")] = 10.0,
    lease: Annotated[float, typer.Option(envvar="RUNS_LEASE", metavar="S", help="Lost after such a silence.")] = 15.0,
    fleet: Annotated[str, typer.Option(envvar="RUNS_FLEET", metavar="NAME", help="The fleet's name.")] = "default",
    code: Annotated[str, typer.Option(envvar="RUNS_CODE", metavar="VERSION", help="The code's version.")] = "",
    health: Annotated[
        str | None, typer.Option(envvar="RUNS_HEALTH", metavar="[HOST:]PORT", help="Answer /live and /ready there.")
    ] = None,
    with_coordinator: Annotated[
        bool, typer.Option("--coordinator", envvar="RUNS_COORDINATOR", help="Run a coordinator beside them.")
    ] = False,
    log_level: Annotated[str, typer.Option(envvar="RUNS_LOG_LEVEL", help="DEBUG, INFO or WARNING.")] = "INFO",
) -> int:
    """Run the handlers of some registries until TERM or INT, which drain; HUP rolls."""
    from workers.process.options import WorkerOptions
    from workers.program.registries import leave
    from workers.supervisor.sidecars import Company
    from workers.supervisor.signals import serve

    here.log_from(level_named(log_level))
    refuse_in_the_way(Path.cwd())
    settings = here.settings
    options = WorkerOptions(
        settings=settings if here.timeout is not None else replace(settings, timeout=30.0),
        concurrency=concurrency,
        queues=tuple(queue.strip() for queue in queues.split(",") if queue.strip()),
        grace=grace,
        lease=lease,
        fleet=fleet,
        code=code,
        processes=processes,
    )
    ended = serve(registries, options, Company(health, with_coordinator))
    leave(ended)
    return ended


command(app)(cli_dev.dev)


@command(app, name="list")
def list_workers(here: Here) -> None:
    """The workers that have a lease, or had one and were not recovered yet."""
    settings = here.settings
    with Client(settings.url, settings.namespace, settings.timeout) as client:
        found = client.workers()
    here.answer(found, workers_table(found) if found else Text("no workers"))


command(app)(cli_fleet.roll)
command(app)(cli_fleet.drain)


if __name__ == "__main__":
    main()
