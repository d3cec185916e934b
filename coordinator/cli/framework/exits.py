"""Exit codes, error messages on stderr, and the entry point of the programs `coordinator` and `workers`."""

from __future__ import annotations

import os
import re
import sys
from typing import NoReturn

import typer

from coordinator.cli.framework.standard_files import open_standard_files
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
from coordinator.printable import clean, json_text

DONE, PROBLEM, WRONG_USAGE, REFUSED, NO_ANSWER, INTERRUPTED = 0, 1, 2, 3, 4, 130

# Newer versions of typer contain a copy of click, older ones import it. So the base class of usage errors has no import
# path that works with both.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

_PASSWORD = re.compile(r"://[^\s/]*@")


def exit_code(error: CoordinatorError) -> int:
    """Return the exit code of a command that ended with this error."""
    if isinstance(error, (BadName, BadOption, NotPlain)):
        return WRONG_USAGE
    if isinstance(error, (Unreachable, Unconfirmed)):
        return NO_ANSWER
    if isinstance(error, (RunFailed, RunCancelled, ResultTimeout)):
        return PROBLEM
    return REFUSED


def print_error(message: object, error: BaseException | None = None) -> None:
    """Write an error to stderr as one line: with --json as a JSON object, otherwise as text. A password in a URL is masked.

    Args:
        message: The error, or a text about it.
        error: The error, if `message` is a text.
    """
    text = clean(_PASSWORD.sub("://***@", " ".join(str(message).split())))
    if not wants_json():
        sys.stderr.write(f"error: {text}\n")
        return
    of = error if error is not None else message
    kind = type(of).__name__ if isinstance(of, CoordinatorError) else "UsageError" if isinstance(of, Exception) else ""
    sys.stderr.write(json_text({"error": {"type": kind or "Problem", "message": text}}) + "\n")


def wants_json() -> bool:
    """Return True if the command line has --json, or RUNS_JSON is set.

    Usage errors occur before the options of a command are parsed, so this function reads the words of the command line.
    """
    return "--json" in sys.argv[1:] or os.environ.get("RUNS_JSON", "").lower() in ("1", "true", "yes", "on", "t", "y")


def run_app(app: typer.Typer, program: str) -> NoReturn:
    """Run the command line and exit the process with the command's exit code.

    Errors of the library are printed as one line. Unexpected errors are raised, so that Python prints a traceback.
    """
    open_standard_files()
    try:
        code = app(prog_name=program, standalone_mode=False)
    except CoordinatorError as error:
        print_error(str(error).rstrip(".") + _hint(error), error)
        code = exit_code(error)
    except _UsageError as error:
        print_error(_usage_message(error, program), error)
        code = WRONG_USAGE
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except RuntimeError as error:
        if not _was_interrupted(error):
            raise
        code = INTERRUPTED  # the interrupt came while a thread was starting, and the cleanup of that thread failed
    except BrokenPipeError:  # the reader of the output has closed the pipe, as `head` does
        sys.stdout = None  # otherwise Python flushes stdout into the closed pipe at exit
        code = DONE
    sys.exit(code if isinstance(code, int) else DONE)


def _hint(error: CoordinatorError) -> str:
    """Return a hint for a server that can't be reached; otherwise an empty string, also for a server that is only busy."""
    away = isinstance(error, Unreachable) and " can't answer now: " not in str(error)
    return "; start the server, or set another one with --url or RUNS_URL" if away else ""


def _was_interrupted(error: BaseException | None) -> bool:
    """Return True if the error was raised while a KeyboardInterrupt was being handled."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _usage_message(error: Exception, program: str) -> str:
    message = str(getattr(error, "format_message", lambda: error)()).strip().rstrip(".").replace("Value error, ", "")
    context = getattr(error, "ctx", None)
    return f"{message[:1].lower()}{message[1:]}: see '{context.command_path if context else program} --help'"
