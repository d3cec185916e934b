"""Refuse to start in a folder that has a module with the same name as one of our packages.

Every worker process would import the user's module instead of the package.
"""

from __future__ import annotations

from pathlib import Path

import coordinator
import workers
from coordinator.errors import BadOption


def refuse_name_clash(directory: Path) -> None:
    """Check that a folder does not hide the packages `coordinator` and `workers`.

    Raises:
        BadOption: If the folder contains a module with one of these names.
    """
    for package in (coordinator, workers):
        ours, name = Path(str(package.__file__)).resolve().parent, package.__name__
        for found in (directory / f"{name}.py", directory / name / "__init__.py"):
            if found.exists() and found.resolve().parent != ours:
                shown = found.parent if found.name == "__init__.py" else found
                raise BadOption(f"{shown} hides the installed package {name!r}: rename it")
