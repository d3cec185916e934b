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
from coordinator.cli.framework.context import CommandContext
from coordinator.cli.framework.options import LogLevel, parse_log_level
from coordinator.config import Settings, local_settings
from coordinator.errors import BadOption
from workers.cli import options as cli_options
from workers.program.name_clash import refuse_name_clash
from workers.supervisor.merged_log import MergedLog

logger = logging.getLogger(__name__)


def dev(
    context: CommandContext,
    registries: cli_options.Registries,
    processes: Annotated[
        int, typer.Option(min=1, max=100, envvar="RUNS_PROCESSES", help="Number of worker processes.")
    ] = 1,
    concurrency: cli_options.Concurrency = 100,
    queues: cli_options.Queues = "default",
    grace: cli_options.Grace = 5.0,
    log_level: LogLevel = "INFO",
) -> int:
    """Run a local server in .runs/, a coordinator and workers in one terminal, and reload changed code.

    When a Python file changes, new workers replace the old ones, and the current runs continue in them.
    Ctrl-C stops everything. The next start continues the runs.
    """
    from workers.dev.dev_server import DevServer
    from workers.process.options import WorkerOptions
    from workers.program.process_exit import exit_process
    from workers.program.registries import fast_runner

    settings = _dev_settings(context)
    refuse_name_clash(Path.cwd())
    merged = MergedLog(sys.stderr, as_json=context.log_json)
    logs.install(merged, parse_log_level(log_level))
    # Python reuses the bytecode of a file if the size of the file and the second of its last change are the same. Two versions
    # of a file that are saved within one second may have the same size, so bytecode is not written.
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    options = WorkerOptions(
        settings=settings,
        concurrency=concurrency,
        queues=cli_options.split_queues(queues),
        grace=grace,
        fleet="dev",
        processes=processes,
    )

    async def main() -> int:
        server = DevServer(registries, options)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # SIGHUP comes when the terminal is closed
            loop.add_signal_handler(number, server.stop)
        logger.info("starting %s on %s; press Ctrl-C to stop", ", ".join(registries), settings.address)
        if settings.address.scheme == "embedded":
            logger.info(
                "to use this server in another terminal: export RUNS_URL=%s", shlex.quote(str(settings.address))
            )
        try:
            return await server.run()
        finally:
            merged.read_all()

    exit_code: int = fast_runner()(main())
    exit_process(exit_code)
    return exit_code


def _dev_settings(context: CommandContext) -> Settings:
    settings = local_settings(context.url, context.namespace, 30.0 if context.timeout is None else context.timeout)
    if settings.address.scheme == "memory":
        raise BadOption(
            "memory:// exists in one process only, and this command starts several: leave out --url, or use another URL"
        )
    return settings
