"""The command `workers dev`."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from coordinator import logs
from coordinator.cli.options import Here, level_named
from coordinator.config import Settings, local_settings
from coordinator.errors import BadOption
from workers.program.name_clash import refuse_in_the_way
from workers.supervisor.merged_log import MergedLog

logger = logging.getLogger(__name__)


def dev(
    here: Here,
    registries: Annotated[list[str], typer.Argument(metavar="MODULE:REGISTRY...", help="As in app:runs.")],
    processes: Annotated[int, typer.Option(min=1, max=100, envvar="RUNS_PROCESSES", help="How many workers.")] = 1,
    concurrency: Annotated[int, typer.Option(envvar="RUNS_CONCURRENCY", help="Runs at once in a process.")] = 100,
    queues: Annotated[str, typer.Option(envvar="RUNS_QUEUES", metavar="A,B", help="Whose runs to take.")] = "default",
    grace: Annotated[float, typer.Option(envvar="RUNS_GRACE", metavar="S", help="How long a stop may take.")] = 5.0,
    log_level: Annotated[str, typer.Option(envvar="RUNS_LOG_LEVEL", help="DEBUG, INFO or WARNING.")] = "INFO",
) -> int:
    """A server in .runs/, a coordinator and workers in one terminal; changed code is taken over without losing a run."""
    from workers.dev.dev_server import Dev
    from workers.process.options import WorkerOptions
    from workers.program.registries import fast_runner, leave

    settings = _settings(here)
    refuse_in_the_way(Path.cwd())
    merged = MergedLog(sys.stderr, as_json=here.log_json)
    logs.install(merged, level_named(log_level))
    # two saves in one second may have the same size: the bytecode of the first would pass for the second's
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    options = WorkerOptions(
        settings=settings,
        concurrency=concurrency,
        queues=tuple(queue.strip() for queue in queues.split(",") if queue.strip()),
        grace=grace,
        fleet="dev",
        processes=processes,
    )

    async def main() -> int:
        work = Dev(registries, options)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # the last comes when the terminal is closed
            loop.add_signal_handler(number, work.stop)
        logger.info("%s on %s; Ctrl-C drains and ends", ", ".join(registries), settings.address)
        if settings.address.scheme == "embedded":
            logger.info("other terminals reach it with: export RUNS_URL=%s", shlex.quote(str(settings.address)))
        try:
            return await work.run()
        finally:
            merged.read_all()

    ended: int = fast_runner()(main())
    leave(ended)
    return ended


def _settings(here: Here) -> Settings:
    settings = local_settings(here.url, here.namespace, 30.0 if here.timeout is None else here.timeout)
    if settings.address.scheme == "memory":
        raise BadOption(
            "memory:// lives in one process and this command starts several: leave out --url, or name another"
        )
    return settings
