"""What every program that runs handlers needs: finds the registries, has an event loop, and always comes to an end.

Little is imported here: a new worker process is waited for, after a crash and in a roll.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from coordinator.errors import BadOption
from coordinator.store.transport.wire import detach
from workers.handlers.registry import Registry


def load(place: str) -> Registry[Any]:
    """The registry at MODULE:NAME. The current directory counts, as where people start things."""
    module, _, attribute = place.partition(":")
    if not module or not attribute:
        raise BadOption(f"{place!r} names no registry: write MODULE:NAME, as in app:runs")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise BadOption(f"there is no module {module!r} here or on the path: is {place!r} right?") from None
        raise BadOption(f"module {module!r} can't be imported: {error}{_place(error)}") from error
    except Exception as error:
        said = f"{type(error).__name__}: {error}{_place(error)}"
        raise BadOption(f"module {module!r} can't be imported: {said}") from error
    home = found
    for part in attribute.split("."):
        if not hasattr(found, part):
            there = [name for name, value in vars(home).items() if isinstance(value, Registry)]
            meant = (
                f": did you mean {module}:{there[0]}?"
                if there
                else " and no Registry at all: make one with runs = Registry()"
            )
            raise BadOption(f"module {module!r} has no {part!r}{meant}")
        found = getattr(found, part)
    if not isinstance(found, Registry):
        raise BadOption(f"{place!r} is not a Registry: it is {type(found).__name__}")
    return found


def _place(error: BaseException) -> str:
    """Where in the user's code an import went wrong."""
    if isinstance(error, SyntaxError):
        return "" if error.filename is None or f"line {error.lineno}" in str(error) else f" ({error.filename})"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


def load_all(places: Sequence[str]) -> Registry[Any]:
    """The registries at some places as one."""
    registry = Registry.merged(*(load(place) for place in places))
    if not registry.handlers:
        name = places[0].rpartition(":")[2]
        raise BadOption(f"{', '.join(places)} has no handlers: decorate functions with @{name}.handler")
    return registry


def settle() -> None:
    """What is loaded by now stays for good: the garbage collector need not look through it again and again, which was a tenth of
    what a short run cost."""
    gc.collect()
    gc.freeze()


def leave(code: int) -> None:
    """Ends the process now: a plain handler that ignores its stop would keep it for ever. Its run was released."""
    try:
        detach()
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # also where nobody reads our output any more
        os._exit(code)


def fast_runner() -> Any:
    """Runs a coroutine, on uvloop where it is installed (the extra `speed`). Unlike asyncio.run it does not wait for what was left
    behind: a handler that ignores every cancellation would keep the process for ever."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop().run_until_complete
    return uvloop.new_event_loop().run_until_complete
