"""Import the public names of a package when they are first used.

`import coordinator` must be cheap: a program that only raises or catches an error needs neither asyncio nor redis. A package root
declares its names twice: under `TYPE_CHECKING` for type checkers, editors and Sphinx, and in a table for the running program. A
test compares the two.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` of a package whose names are imported on first use.

    Args:
        package: The name of the package.
        modules: The module that defines each name. If the name is a module itself, the package that contains it.
    """

    def load(name: str) -> Any:
        if name.startswith("__"):  # Python asks for optional names such as __path__, which no module of ours has
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        parent = modules.get(name, package)
        # A module of the package is an attribute only after its first import.
        value = getattr(import_module(parent), name, None) if name in modules else None
        if value is None:
            value = _submodule(package, parent, name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return load, names


def _submodule(package: str, parent: str, name: str) -> Any:
    full = f"{parent}.{name}"
    try:
        return import_module(full)
    except ModuleNotFoundError as error:
        if error.name != full:
            raise  # the module exists, and one of its own imports is missing
        raise AttributeError(f"module {package!r} has no attribute {name!r}") from None
