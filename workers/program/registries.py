"""Import registries, and start a program that runs handlers.

This module imports few modules, because runs wait for the start of a new worker process after a crash and in a roll.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from coordinator.environment import read_environment
from coordinator.errors import BadOption
from workers.handlers.registry import Registry


def load(path: str) -> Registry[Any]:
    """Import the registry at MODULE:REGISTRY, and return it. Modules in the current directory are found too.

    Raises:
        BadOption: If the module can't be imported, or has no such registry.
    """
    module, _, attribute = path.partition(":")
    if not module or not attribute:
        raise BadOption(f"{path!r} does not name a registry: write MODULE:REGISTRY, as in app:runs")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    found: Any = _import(module, path)
    home = found
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise BadOption(f"module {module!r} has no {part!r}{_suggest(module, home)}")
        found = getattr(found, part)
    if not isinstance(found, Registry):
        raise BadOption(f"{path!r} is not a Registry: it is {type(found).__name__}")
    return found


def _import(module: str, path: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise BadOption(f"there is no module {module!r} here or on the path: is {path!r} right?") from None
        raise BadOption(f"module {module!r} can't be imported: {error}{_location(error)}") from error
    except Exception as error:
        problem = f"{type(error).__name__}: {error}{_location(error)}"
        raise BadOption(f"module {module!r} can't be imported: {problem}") from error


def _suggest(module: str, home: Any) -> str:
    names = [name for name, value in vars(home).items() if isinstance(value, Registry)]
    if names:
        return f": did you mean {module}:{names[0]}?"
    return " and no Registry: create one with runs = Registry()"


def _location(error: BaseException) -> str:
    """Return the place in the user's code at which an import failed, as " (file, line N)"; empty if it is unknown."""
    if isinstance(error, SyntaxError):
        return "" if error.filename is None or f"line {error.lineno}" in str(error) else f" ({error.filename})"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


THRESHOLDS = (5000, 20, 20)  # of the garbage collector, for the worker process
_DEFAULT_THRESHOLDS = gc.get_threshold()  # this module is imported before the handlers


def load_all(paths: Sequence[str]) -> Registry[Any]:
    """Import registries, each named as MODULE:REGISTRY, and return one registry with all their handlers.

    Raises:
        BadOption: If a registry can't be imported, or none of the registries has a handler.
    """
    registry = Registry.merged(*(load(path) for path in paths))
    if not registry.handlers:
        name = paths[0].rpartition(":")[2]
        raise BadOption(f"{', '.join(paths)} has no handlers: decorate functions with @{name}.handler")
    return registry


def tune_garbage_collector() -> None:
    """Exclude all objects that exist now from garbage collection, and collect the others less often.

    Imported modules stay until the process ends. Without this function, the collector examines their objects again and again, which
    takes a tenth of the time of a short run. In a process with thousands of live runs, examining the objects of all runs takes a
    third of the time of a saved turn. If the program has set its own thresholds, they stay.
    """
    gc.collect()
    gc.freeze()
    if gc.get_threshold() == _DEFAULT_THRESHOLDS:
        gc.set_threshold(*THRESHOLDS)


def fast_runner() -> Any:
    """Return a function that runs a coroutine, on uvloop if it is installed (the extra `speed`) and RUNS_LOOP allows it.

    Unlike `asyncio.run`, the function does not wait for the tasks that are left: a handler that ignores every cancellation would
    keep the process alive forever.

    Raises:
        BadOption: If RUNS_LOOP is not valid, or names uvloop although uvloop is not installed.
    """
    wanted = read_environment().loop
    if wanted not in ("", "asyncio", "uvloop"):
        raise BadOption(f"RUNS_LOOP is {wanted!r}: use asyncio or uvloop")
    if wanted != "asyncio":
        try:
            import uvloop
        except ImportError:
            if wanted == "uvloop":
                raise BadOption("RUNS_LOOP is uvloop, which is not installed: pip install uvloop") from None
        else:
            return uvloop.new_event_loop().run_until_complete
    return asyncio.new_event_loop().run_until_complete
