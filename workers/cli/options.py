"""The options that several of the `workers` commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Registries = Annotated[
    list[str],
    typer.Argument(
        metavar="MODULE:REGISTRY...", help="The registries of the handlers, each as module:name, for example app:runs."
    ),
]
Concurrency = Annotated[
    int, typer.Option(envvar="RUNS_CONCURRENCY", help="Largest number of runs at the same time in one process.")
]
Queues = Annotated[
    str, typer.Option(envvar="RUNS_QUEUES", metavar="A,B", help="Queues to take runs from, separated by commas.")
]
Grace = Annotated[
    float,
    typer.Option(
        envvar="RUNS_GRACE",
        metavar="SECONDS",
        help="When a worker is stopped, how long a handler has to reach its next cut.",
    ),
]


def split_queues(text: str) -> tuple[str, ...]:
    """Return the queue names of a `--queues` option."""
    return tuple(queue.strip() for queue in text.split(",") if queue.strip())
