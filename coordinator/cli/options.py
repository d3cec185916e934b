"""What both commands share: the options that stand everywhere, exit codes, and one sentence for every error.

The common options may stand before the subcommand or after it; what stands after it wins. They are added to each
command's signature here, so that a command names only its own.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from coordinator import logs
from coordinator.config import Settings, settings
from coordinator.errors import (
    BadName,
    BadOption,
    CoordinatorError,
    NotPlain,
    ResultTimeout,
    RunCancelled,
    RunFailed,
    Unconfirmed,
    Unreachable,
)
from coordinator.views.json_data import to_json_data

DONE, BADLY, WRONG_USE, REFUSED, NO_ANSWER, INTERRUPTED = 0, 1, 2, 3, 4, 130
_WIDTH_OF_A_FILE = 1000  # where nobody looks at it a table is not squeezed into 80 columns

# newer typers carry a click of their own, older ones use the installed one: its class of wrong uses has no public name
_WrongUse: type[Exception] = typer.BadParameter.__mro__[1]

# name: its type, its default, its flag, its variable (those of the server are read by config.py), what it says
_COMMON: Mapping[str, tuple[Any, Any, str, str | None, str]] = {
    "url": (str | None, None, "--url", None, "The server; else RUNS_URL, REDIS_URL, localhost."),
    "namespace": (str | None, None, "--namespace", None, "The namespace; else RUNS_NAMESPACE, runs."),
    "as_json": (bool, False, "--json", "RUNS_JSON", "Output for machines."),
    "log_json": (bool, False, "--log-json", "RUNS_LOG_JSON", "Log lines as JSON."),
    "timeout": (float | None, None, "--timeout", "RUNS_TIMEOUT", "Seconds to wait for the server's answer."),
}


@dataclass(frozen=True)
class Here:
    """Where a command works, and how it speaks."""

    url: str | None = None
    namespace: str | None = None
    as_json: bool = False
    log_json: bool = False
    timeout: float | None = None

    @cached_property
    def settings(self) -> Settings:
        """Which server and namespace. memory:// is refused: what a command writes there is gone with it."""
        found = settings(self.url, self.namespace, 5.0 if self.timeout is None else self.timeout)
        if found.address.scheme == "memory":
            raise BadOption(
                "memory:// lives in one process and ends with it: give a command --url redis://host:6379/0 or "
                "embedded://./dir"
            )
        return found

    @cached_property
    def console(self) -> Console:
        """For answers."""
        return _console(stderr=False)

    @cached_property
    def aside(self) -> Console:
        """For progress and remarks, which are no answer."""
        return _console(stderr=True)

    def answer(self, value: Any, *shown: Any) -> None:
        """One answer: JSON for machines, or what is shown to people."""
        if self.as_json:
            sys.stdout.write(json.dumps(to_json_data(value), indent=2, ensure_ascii=False) + "\n")
            return
        for part in shown:
            self.console.print(part)

    def log_from(self, level: int) -> None:
        logs.configure(as_json=self.log_json, level=level)


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False, soft_wrap=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=_WIDTH_OF_A_FILE)


def command(app: typer.Typer, *, name: str | None = None) -> Callable[[Callable[..., int | None]], Callable[..., Any]]:
    """A command of the app: its own parameters after `here`, and the common ones."""

    def decorate(function: Callable[..., int | None]) -> Callable[..., Any]:
        return app.command(name)(_with_common(function))

    return decorate


def new_app(program: str, says: str) -> typer.Typer:
    """An app with the common options, from the environment too, and --version."""
    # typer's own tracebacks show the values of local variables, and a password among them
    app = typer.Typer(help=says, add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)

    def callback(ctx: typer.Context, *, show_version: bool = False, **common: Any) -> None:
        if show_version:
            typer.echo(f"{program} {version('run-coordinator')}")
            raise typer.Exit
        ctx.obj = common
        if ctx.invoked_subcommand is None:
            typer.echo(ctx.get_help())
            raise typer.Exit(WRONG_USE)

    flag = Annotated[bool, typer.Option("--version", help="Say the version and end.", show_default=False)]
    _sign(callback, [_parameter("show_version", flag, False)], environment=True)
    app.callback(invoke_without_command=True)(callback)
    return app


def _with_common(function: Callable[..., int | None]) -> Callable[..., int | None]:
    _, *own = inspect.signature(function, eval_str=True).parameters.values()

    @functools.wraps(function)
    def call(ctx: typer.Context, **given: Any) -> int | None:
        before: dict[str, Any] = ctx.find_root().obj or {}
        common: dict[str, Any] = {name: given.pop(name) or before.get(name) for name in _COMMON}
        here = Here(**common)
        here.log_from(logging.WARNING)
        return function(here, **given)

    del call.__wrapped__  # typer must read our signature, not the function's
    _sign(call, own, environment=False)
    return call


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _sign(function: Callable[..., Any], own: list[inspect.Parameter], *, environment: bool) -> None:
    """The signature that typer reads: the context, the command's own parameters, the common ones."""
    common = [_common_parameter(name, environment=environment) for name in _COMMON]
    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    parameters = [context, *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own), *common]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # functions have no such slot
    function.__annotations__ = {p.name: p.annotation for p in parameters}


def _common_parameter(name: str, *, environment: bool) -> inspect.Parameter:
    """Variables are read before the subcommand only: after it they would win over what was written before it."""
    kind, default, flag, variable, says = _COMMON[name]
    option = typer.Option(
        flag, help=says, rich_help_panel="Everywhere", show_default=False, envvar=variable if environment else None
    )
    return _parameter(name, Annotated[kind, option], default)


def level_named(text: str) -> int:
    """The level of logging that an option names."""
    level = logging.getLevelNamesMapping().get(text.upper())
    if level is None:
        raise BadOption(f"log level {text!r} is none of DEBUG, INFO, WARNING, ERROR")
    return level


_PASSWORD = re.compile(r"://[^\s/]*@")


# ---- the end of a command ------------------------------------------------------------------------------------------


def exit_code(error: CoordinatorError) -> int:
    """What an error means for who called the command."""
    if isinstance(error, (BadName, BadOption, NotPlain)):
        return WRONG_USE
    if isinstance(error, (Unreachable, Unconfirmed)):
        return NO_ANSWER
    if isinstance(error, (RunFailed, RunCancelled, ResultTimeout)):
        return BADLY
    return REFUSED


def complain(sentence: object) -> None:
    """One sentence on stderr. A URL in the wrong place is repeated to who typed it, and its password is not."""
    text = _PASSWORD.sub("://***@", " ".join(str(sentence).split()))
    sys.stderr.write(f"error: {text}\n")


def main(app: typer.Typer, program: str) -> NoReturn:
    """Runs the command line and ends the process. An error of ours is a sentence, a mistake of ours a traceback."""
    try:
        code = app(prog_name=program, standalone_mode=False)
    except CoordinatorError as error:
        hint = ": start it, or name another with --url or RUNS_URL" if isinstance(error, Unreachable) else ""
        complain(str(error).rstrip(".") + hint)
        code = exit_code(error)
    except _WrongUse as error:
        complain(_usage(error, program))
        code = WRONG_USE
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except RuntimeError as error:
        if not _interrupted(error):
            raise
        code = INTERRUPTED  # the interrupt came while a thread was about to start, and tidying up met half of it
    except BrokenPipeError:  # who read the output has seen enough
        sys.stdout = None  # nothing is left to be flushed into the pipe
        code = DONE
    sys.exit(code if isinstance(code, int) else DONE)


def _interrupted(error: BaseException | None) -> bool:
    """Whether an error came up while an interrupt was dealt with."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _usage(error: Exception, program: str) -> str:
    message = str(getattr(error, "format_message", lambda: error)()).strip().rstrip(".").replace("Value error, ", "")
    context = getattr(error, "ctx", None)
    return f"{message[:1].lower()}{message[1:]}: see '{context.command_path if context else program} --help'"
