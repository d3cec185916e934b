"""A module of the user that is called like ours would be imported in its place by every process that is started."""

from __future__ import annotations

from pathlib import Path

import coordinator
import workers
from coordinator.errors import BadOption


def refuse_in_the_way(directory: Path) -> None:
    """A sentence where a folder that people start things in hides one of the installed packages."""
    for package in (coordinator, workers):
        ours, name = Path(str(package.__file__)).resolve().parent, package.__name__
        for found in (directory / f"{name}.py", directory / name / "__init__.py"):
            if found.exists() and found.resolve().parent != ours:
                shown = found.parent if found.name == "__init__.py" else found
                raise BadOption(
                    f"{shown} is in the way of the installed package {name!r}, which it would hide: rename it"
                )
