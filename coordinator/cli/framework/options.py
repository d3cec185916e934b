"""Define commands with the common options: --url, --namespace, --json, --log-json, --timeout.

The common options may stand before or after the subcommand. An option after the subcommand wins. This module adds them to the
signature of each command, so that a command declares only its own parameters.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import typer

from coordinator.cli.framework.context import CommandContext
from coordinator.cli.framework.groups import Command, LazyCommand, lazy_group, print_help
from coordinator.errors import BadOption

# The options that `coordinator start` and `workers start` share.
Health = Annotated[
    str | None,
    typer.Option(
        envvar="RUNS_HEALTH",
        metavar="[HOST:]PORT",
        help="Serve health checks: GET /live and GET /ready. A port alone is open on all interfaces.",
    ),
]
Metrics = Annotated[
    str | None,
    typer.Option(
        envvar="RUNS_METRICS",
        metavar="[HOST:]PORT",
        help="Serve metrics for Prometheus: GET /metrics. A port alone is open on all interfaces.",
    ),
]
LogLevel = Annotated[str, typer.Option(envvar="RUNS_LOG_LEVEL", help="DEBUG, INFO, WARNING or ERROR.")]


class _CommonOption(NamedTuple):
    type: Any
    default: Any
    flag: str
    variable: str | None  # config.py reads the variables of the server and the namespace
    help: str


_COMMON: Mapping[str, _CommonOption] = {
    "url": _CommonOption(
        str | None, None, "--url", None, "Server URL. Default: RUNS_URL, REDIS_URL, or redis://localhost:6379/0."
    ),
    "namespace": _CommonOption(str | None, None, "--namespace", None, "Namespace. Default: RUNS_NAMESPACE, or 'runs'."),
    "as_json": _CommonOption(bool, False, "--json", "RUNS_JSON", "Print the answer as JSON."),
    "log_json": _CommonOption(bool, False, "--log-json", "RUNS_LOG_JSON", "Write log lines as JSON."),
    "timeout": _CommonOption(
        float | None, None, "--timeout", "RUNS_TIMEOUT", "Seconds to wait for an answer from the server."
    ),
}


def new_app(program: str, help: str, commands: tuple[LazyCommand, ...]) -> typer.Typer:
    """Return an app that has the common options and --version.

    Args:
        program: The name of the program, for --version.
        help: One sentence on what the program does.
        commands: Its commands, in the order in which --help lists them. A command is imported when it is called.
    """
    # typer's own tracebacks show local variables, and a password may be among them
    app = typer.Typer(
        help=help,
        cls=lazy_group(commands, _build),
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    def callback(ctx: typer.Context, *, show_version: bool = False, **common: Any) -> None:
        if show_version:
            from importlib.metadata import version

            typer.echo(f"{program} {version('run-coordinator')}")
            raise typer.Exit
        ctx.obj = common
        print_help(ctx)

    flag = Annotated[bool, typer.Option("--version", help="Show the version and exit.", show_default=False)]
    _set_signature(callback, [_parameter("show_version", flag, False)], environment=True)
    app.callback(invoke_without_command=True)(callback)
    return app


def command(app: typer.Typer, *, name: str | None = None) -> Callable[[Callable[..., int | None]], Callable[..., Any]]:
    """Return a decorator that adds a command to the app.

    The first parameter of the decorated function is a CommandContext. Its other parameters are the command's own options. The
    function returns an exit code, or None for success.
    """

    def decorate(function: Callable[..., int | None]) -> Callable[..., Any]:
        return app.command(name, cls=Command)(_with_common_options(function))

    return decorate


def _build(lazy: LazyCommand, target: Any) -> Any:
    """Return the click command for the function or the typer app that a lazy command names."""
    app = target
    if not isinstance(target, typer.Typer):
        app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        command(app, name=lazy.name)(target)
    built = typer.main.get_command(app)
    built.name = lazy.name
    return built


def parse_log_level(text: str) -> int:
    """Return the logging level with this name.

    Raises:
        BadOption: There is no such level.
    """
    level = logging.getLevelNamesMapping().get(text.upper())
    if level is None:
        raise BadOption(f"log level {text!r} is not known: use DEBUG, INFO, WARNING or ERROR")
    return level


def _with_common_options(function: Callable[..., int | None]) -> Callable[..., int | None]:
    _, *own = inspect.signature(function, eval_str=True).parameters.values()

    @functools.wraps(function)
    def call(ctx: typer.Context, **given: Any) -> int | None:
        before: dict[str, Any] = ctx.find_root().obj or {}
        typed: dict[str, Any] = {name: given.pop(name) for name in _COMMON}
        common: dict[str, Any] = {name: value or before.get(name) for name, value in typed.items()}
        context = CommandContext(**common, typed_timeout=typed["timeout"])
        context.configure_logs(logging.WARNING)
        return function(context, **given)

    del call.__wrapped__  # typer must read the signature that is set below, not the function's
    _set_signature(call, own, environment=False)
    return call


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _set_signature(function: Callable[..., Any], own: list[inspect.Parameter], *, environment: bool) -> None:
    """Set the signature that typer reads: the typer context, the command's own parameters, the common options."""
    common = [_common_parameter(name, environment=environment) for name in _COMMON]
    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    parameters = [context, *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own), *common]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # functions have no such slot
    function.__annotations__ = {p.name: p.annotation for p in parameters}


def _common_parameter(name: str, *, environment: bool) -> inspect.Parameter:
    """Return the parameter for a common option.

    Environment variables are read only for the options before the subcommand. If they were read for the options after it too, a
    variable would override an option that the user wrote before the subcommand.
    """
    common = _COMMON[name]
    option = typer.Option(
        common.flag,
        help=common.help,
        rich_help_panel="Common options",
        show_default=False,
        envvar=common.variable if environment else None,
    )
    return _parameter(name, Annotated[common.type, option], common.default)
