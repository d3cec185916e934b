"""Check in a separate process whether the code on disk can be imported: `python -m workers.dev.import_trial FD REGISTRY …`.

The effects of an import can't be undone, and a second import of changed code is not the same as a first one. So `workers dev`
itself never imports a handler. The trial process writes its result as one line of JSON to the file descriptor FD.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import coordinator
from coordinator.errors import CoordinatorError
from workers.program.registries import load_all

IMPORT_TIMEOUT = 60.0  # seconds
_OURS = tuple(str(Path(str(coordinator.__file__)).resolve().parents[1] / name) for name in ("coordinator", "workers"))


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The result of a trial import.

    Attributes:
        problem: The error message; empty if the import succeeded.
        files: The files of the user's code.
        grace: The longest grace of the handlers, in seconds.
    """

    problem: str
    files: tuple[str, ...] = ()
    grace: float = 0.0


async def try_import(registries: Sequence[str]) -> TrialResult:
    """Import registries in a new process, and return the result. If the process hangs or dies, the result says so.

    Args:
        registries: The names of the registries, each as MODULE:REGISTRY.
    """
    reading, writing = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "workers.dev.import_trial", str(writing), *registries,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            pass_fds=(writing,), start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        os.close(reading)
        return TrialResult(f"can't start a process to try the code: {error}")
    finally:
        os.close(writing)
    problem = ""
    try:
        async with asyncio.timeout(IMPORT_TIMEOUT):
            answer, _ = await asyncio.gather(asyncio.to_thread(_read, reading), process.wait())
    except TimeoutError:
        answer, problem = b"", f"the import did not end within {IMPORT_TIMEOUT:.0f} s"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if answer:
        found = json.loads(answer)
        return TrialResult(found["problem"], tuple(found["files"]), found["grace"])
    problem = problem or f"the process that tried it ended with exit code {process.returncode}"
    return TrialResult(f"{', '.join(registries)} can't be imported: {problem}")


def _read(reading: int) -> bytes:
    with open(reading, "rb") as pipe:
        return pipe.read()


# ---- in the trial process --------------------------------------------------------------------------------------------


def main() -> None:
    """Import the registries that the command's arguments name, write the result to the file descriptor, and end the process."""
    answer, registries = int(sys.argv[1]), sys.argv[2:]
    os.set_inheritable(answer, False)  # a process that a module starts must not keep the pipe open
    problem, grace, named = "", 0.0, list[str]()
    try:
        registry = load_all(registries)
        grace = max((handler.grace or 0.0 for handler in registry.handlers.values()), default=0.0)
    except BaseException as error:  # noqa: BLE001  # a module may also exit
        problem, named = describe_error(error, registries)
    result = {"problem": problem, "files": sorted({*_imported_files(), *named}), "grace": grace}
    with os.fdopen(answer, "w") as pipe:
        json.dump(result, pipe)
        pipe.flush()
        os._exit(0)  # a normal exit would wait for threads that a module has started


def describe_error(error: BaseException, registries: Sequence[str]) -> tuple[str, list[str]]:
    """Return the message for an import error, with the user's part of the traceback, and the files in that traceback."""
    ours = isinstance(error, CoordinatorError)
    message = str(error) if ours else f"{', '.join(registries)} can't be imported: {type(error).__name__}: {error}"
    cause = error.__cause__ if ours else error
    if cause is None:
        return message, []
    shown = traceback.TracebackException.from_exception(cause)
    theirs = [frame for frame in shown.stack if "importlib" not in frame.filename and not _is_ours(frame.filename)]
    shown.stack = traceback.StackSummary.from_list(theirs)
    shown.__cause__ = shown.__context__ = None
    files = [frame.filename for frame in theirs]
    if isinstance(cause, SyntaxError) and cause.filename:
        files.append(cause.filename)
    return f"{message}\n{''.join(shown.format()).rstrip()}", [os.path.realpath(file) for file in files]


def _imported_files() -> list[str]:
    """Return the files of the user's modules.

    Installed packages are left out, because they do not change, and so are modules that Python imports before the program.
    """
    installed = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    before = {"sitecustomize", "usercustomize"}  # Debian has one outside the folders of installed packages
    found = (getattr(module, "__file__", None) for name, module in list(sys.modules.items()) if name not in before)
    files = {os.path.realpath(file) for file in found if isinstance(file, str) and file.endswith(".py")}
    return [file for file in files if not file.startswith(installed) and not _is_ours(file)]


def _is_ours(file: str) -> bool:
    return file.startswith(tuple(f"{folder}{os.sep}" for folder in _OURS))


if __name__ == "__main__":
    main()
