"""The command web: serve runs over HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from coordinator.cli.framework.context import CommandContext
from coordinator.cli.framework.options import parse_log_level
from coordinator.errors import NotConfigured


def web(
    context: CommandContext,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free port.")] = 8700,
    host: Annotated[
        str, typer.Option(help="Address to listen on. An address that other machines can reach needs --auth.")
    ] = "127.0.0.1",
    auth: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File of callers: on each line a name, a role (all or read) and a token."),
    ] = None,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Let callers change runs. Otherwise they can only read.")
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Another host name under which the server is called, as behind a proxy."),
    ] = None,
    log_level: Annotated[str, typer.Option(envvar="RUNS_LOG_LEVEL", help="DEBUG, INFO or WARNING.")] = "INFO",
) -> None:
    """Serve the page and, under /api, the HTTP API, until SIGTERM or SIGINT.

    It needs the optional packages of the extra `web`.
    """
    try:
        from coordinator.web.auth import TokenFile
        from coordinator.web.server import WebSettings, serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise NotConfigured(
            f"coordinator web needs an optional package ({error}): pip install 'run-coordinator[web]'"
        ) from None
    context.configure_logs(parse_log_level(log_level))
    tokens = None if auth is None else TokenFile(auth)
    settings = WebSettings(host, port, tokens, allow_changes, tuple(allow_host or ()))
    asyncio.run(serve(context.settings, settings))
