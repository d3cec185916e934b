"""The command `coordinator`: its subcommands, and the entry point of the program."""

from __future__ import annotations

from typing import NoReturn

from coordinator.cli.framework.exits import run_app
from coordinator.cli.framework.groups import LazyCommand
from coordinator.cli.framework.options import new_app

app = new_app(
    "coordinator",
    "Durable runs on Redis or Valkey.",
    (  # in the order in which --help lists them
        LazyCommand(
            "init",
            "coordinator.cli.namespaces.setup:init",
            "Create a namespace with a number of partitions and a durability.",
        ),
        LazyCommand("start", "coordinator.cli.start:start", "Run a coordinator until SIGTERM or SIGINT."),
        LazyCommand(
            "enqueue",
            "coordinator.cli.runs.enqueue:enqueue",
            "Enqueue one run, or many with --count, and print the ids.",
        ),
        LazyCommand(
            "status",
            "coordinator.cli.runs.queries:status",
            "Show run counts, queues, workers and coordinators, and what needs attention.",
        ),
        LazyCommand("runs", "coordinator.cli.runs.queries:runs", "List runs, newest first."),
        LazyCommand(
            "show",
            "coordinator.cli.runs.queries:show",
            "Show one run: its status and why, its attempts, its checkpoint, its inputs, and its result or error.",
        ),
        LazyCommand(
            "events",
            "coordinator.cli.namespaces.live:events",
            "Show changes of runs: when each was queued, started, requeued and ended.",
        ),
        LazyCommand(
            "top",
            "coordinator.cli.namespaces.live:top",
            "Show queues, workers and the latest changes, live, until Ctrl-C.",
        ),
        LazyCommand(
            "stream",
            "coordinator.cli.runs.stream:stream",
            "Print the events that a run emits, until the run has ended or Ctrl-C.",
        ),
        LazyCommand("send", "coordinator.cli.runs.send:send", "Send a signal to a run that has not ended."),
        LazyCommand(
            "grant",
            "coordinator.cli.runs.grant:grant",
            "Let a run spend more than its budget. A run that waits for a grant is woken.",
        ),
        LazyCommand(
            "cancel",
            "coordinator.cli.runs.changes:cancel_runs",
            "Cancel the runs with these ids, or with --yes all runs that match the filters.",
        ),
        LazyCommand(
            "revive",
            "coordinator.cli.runs.changes:revive_runs",
            "Requeue failed, dead or cancelled runs with these ids, or with --yes all failed and dead runs that match the filters.",
        ),
        LazyCommand(
            "discard",
            "coordinator.cli.runs.changes:discard_runs",
            "Delete ended runs before their retention is over: the runs with these ids, or with --yes all that match the filters.",
        ),
        LazyCommand(
            "check",
            "coordinator.cli.namespaces.setup:check",
            "Check the server's settings, run a script of each role, and show the command that fixes each problem.",
        ),
        LazyCommand(
            "acl",
            "coordinator.cli.namespaces.setup:acl",
            "Print the ACL SETUSER command that gives a role exactly the rights it needs.",
        ),
        LazyCommand(
            "pause",
            "coordinator.cli.namespaces.pause:pause",
            "Pause a queue or a kind: workers take no more of its runs. Runs that have started continue.",
        ),
        LazyCommand(
            "unpause",
            "coordinator.cli.namespaces.pause:unpause",
            "Let workers take the runs of a paused queue or kind again.",
        ),
        LazyCommand(
            "doctor",
            "coordinator.cli.namespaces.doctor:doctor",
            "Verify that each run is stored in exactly one place, and that no data is left over.",
        ),
        LazyCommand(
            "web", "coordinator.cli.web:web", "Serve the page and, under /api, the HTTP API, until SIGTERM or SIGINT."
        ),
        LazyCommand(
            "schedule", "coordinator.cli.namespaces.schedules:app", "Enqueue runs at fixed times or intervals."
        ),
        LazyCommand(
            "limit",
            "coordinator.cli.namespaces.limits:app",
            "Limit how many runs of a group are ready or running at once, and how many start per unit of time.",
        ),
        LazyCommand(
            "rate",
            "coordinator.cli.namespaces.rates:app",
            "Limit the external calls that handlers make with run.limit.",
        ),
    ),
)


def main() -> NoReturn:
    """Run the command `coordinator`, and end the process with its exit code."""
    run_app(app, "coordinator")


if __name__ == "__main__":
    main()
