"""The command `workers`: start worker processes, list them, roll and drain them."""

from __future__ import annotations

from typing import NoReturn

from coordinator.cli.framework.exits import run_app
from coordinator.cli.framework.groups import LazyCommand
from coordinator.cli.framework.options import new_app

app = new_app(
    "workers",
    "Start and manage the worker processes that execute durable runs.",
    (  # in the order in which --help lists them
        LazyCommand(
            "start",
            "workers.cli.start:start",
            "Start a supervisor and worker processes that execute the handlers of the given registries.",
        ),
        LazyCommand(
            "dev",
            "workers.cli.dev:dev",
            "Run a local server in .runs/, a coordinator and workers in one terminal, and reload changed code.",
        ),
        LazyCommand(
            "list",
            "workers.cli.fleet:list_workers",
            "List the workers that have a lease, or whose runs were not recovered yet.",
        ),
        LazyCommand(
            "roll",
            "workers.cli.fleet:roll",
            "Replace the worker processes of a fleet with new ones that run the code on disk, without losing a run.",
        ),
        LazyCommand(
            "drain",
            "workers.cli.fleet:drain",
            "Let one worker process release its runs and end. Its supervisor starts a new process in its place.",
        ),
    ),
)


def main() -> NoReturn:
    """Run the command and end the process with its exit code."""
    run_app(app, "workers")


if __name__ == "__main__":
    main()
