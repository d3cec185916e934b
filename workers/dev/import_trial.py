"""Whether the code that is on disk can be imported, found out in a process of its own: `python -m workers.trial FD PLACE …`.

What a module does when it is imported can't be undone, and a second import of changed code is not the same as a first: so
`workers dev` itself never imports a handler. The answer is one line of JSON on the given file.
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

PATIENCE = 60.0
_OURS = tuple(str(Path(str(coordinator.__file__)).resolve().parents[1] / name) for name in ("coordinator", "workers"))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of it. `problem` is empty where all is well; `files` are those that the code is made of."""

    problem: str
    files: tuple[str, ...] = ()
    grace: float = 0.0


async def tried(places: Sequence[str]) -> Verdict:
    """Imports the places in a new process. One that hangs or dies is a verdict too."""
    reading, writing = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "workers.dev.import_trial", str(writing), *places,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            pass_fds=(writing,), start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        os.close(reading)
        return Verdict(f"the code could not be tried out: {error}")
    finally:
        os.close(writing)
    try:
        async with asyncio.timeout(PATIENCE):
            said, _ = await asyncio.gather(asyncio.to_thread(_read, reading), process.wait())
    except TimeoutError:
        said = b""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if said:
        found = json.loads(said)
        return Verdict(found["problem"], tuple(found["files"]), found["grace"])
    return Verdict(f"{', '.join(places)} can't be imported: the process that tried it ended ({process.returncode})")


def _read(reading: int) -> bytes:
    with open(reading, "rb") as pipe:
        return pipe.read()


# ---- in the process that tries ---------------------------------------------------------------------------------------


def main() -> None:
    answer, places = int(sys.argv[1]), sys.argv[2:]
    os.set_inheritable(answer, False)  # what a module starts must not keep the answer open
    problem, grace, named = "", 0.0, list[str]()
    try:
        registry = load_all(places)
        grace = max((handler.grace or 0.0 for handler in registry.handlers.values()), default=0.0)
    except BaseException as error:  # noqa: BLE001  # a module may also exit
        problem, named = told(error, places)
    verdict = {"problem": problem, "files": sorted({*_imported(), *named}), "grace": grace}
    with os.fdopen(answer, "w") as pipe:
        json.dump(verdict, pipe)
        pipe.flush()
        os._exit(0)  # threads that a module has started would keep it


def told(error: BaseException, places: Sequence[str]) -> tuple[str, list[str]]:
    """The sentence and, where the user's code is at fault, the place in it; and the files that were on the way."""
    ours = isinstance(error, CoordinatorError)
    sentence = str(error) if ours else f"{', '.join(places)} can't be imported: {type(error).__name__}: {error}"
    cause = error.__cause__ if ours else error
    if cause is None:
        return sentence, []
    shown = traceback.TracebackException.from_exception(cause)
    theirs = [frame for frame in shown.stack if "importlib" not in frame.filename and not _is_ours(frame.filename)]
    shown.stack = traceback.StackSummary.from_list(theirs)
    shown.__cause__ = shown.__context__ = None
    files = [frame.filename for frame in theirs]
    if isinstance(cause, SyntaxError) and cause.filename:
        files.append(cause.filename)
    return f"{sentence}\n{''.join(shown.format()).rstrip()}", [os.path.realpath(file) for file in files]


def _imported() -> list[str]:
    """The files of the user's modules: what is installed does not change."""
    installed = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    found = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    files = {os.path.realpath(file) for file in found if isinstance(file, str) and file.endswith(".py")}
    return [file for file in files if not file.startswith(installed) and not _is_ours(file)]


def _is_ours(file: str) -> bool:
    return file.startswith(tuple(f"{folder}{os.sep}" for folder in _OURS))


if __name__ == "__main__":
    main()
