"""Determine the code version of a worker process: the git commit of its handlers, or a hash of their modules.

The process itself determines the version after it has imported the handlers, so that the version is that of the imported code.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from workers.handlers.registry import Registry

GIT_SECONDS = 5.0  # the longest time that a git command may take
DIGITS = 12  # of a commit or a hash
_INSTALLED = {"site-packages", "dist-packages"}


def code_version(registries: Sequence[str], registry: Registry[Any]) -> str:
    """Return the version of the code of some registries and their handlers.

    Args:
        registries: The names of the registries, each as MODULE:REGISTRY.
        registry: The imported registry.

    Returns:
        `3f2a91c04d7e`, `3f2a91c04d7e-dirty-91ab…` if Python files differ from the commit, `hash-91ab…` without git, or `-` if
        the modules have no files.
    """
    modules = [path.partition(":")[0] for path in registries]
    modules += [handler.function.__module__ for handler in registry.handlers.values()]
    homes = {home for module in modules if (home := _file(module)) is not None}
    if not homes:
        return "-"
    commits = {_commit(directory) for directory in {home.parent for home in homes}}
    commit = commits.pop() if len(commits) == 1 else ""
    if commit and not commit.endswith("-dirty"):
        return commit
    return f"{commit or 'hash'}-{_digest(_modules_beside(homes))}"


def _file(module: str) -> Path | None:
    name = getattr(sys.modules.get(module), "__file__", None)
    return Path(name).resolve() if name else None


def _commit(directory: Path) -> str:
    """Return the checked-out commit of a folder, with -dirty if Python files differ from it. Return "" if there is no commit."""
    if not (commit := _git(directory, "rev-parse", f"--short={DIGITS}", "HEAD")):
        return ""
    changes = _git(directory, "status", "--porcelain", "--", ":/*.py")
    return commit.strip() if changes == "" else f"{commit.strip()}-dirty"


def _git(directory: Path, *arguments: str) -> str | None:
    # git runs without optional locks, so that a roll does not disturb a checkout that is under way.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment["GIT_OPTIONAL_LOCKS"] = "0"
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *arguments],
            env=environment, capture_output=True, text=True, timeout=GIT_SECONDS, check=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _modules_beside(homes: Iterable[Path]) -> list[Path]:
    """Return the files of all modules that were imported from the folders of the handlers, or from folders below them."""
    folders = {home.parent for home in homes}
    files = {file for module in list(sys.modules) if (file := _file(module)) is not None}
    return sorted(f for f in files if folders & set(f.parents) and not _INSTALLED & set(f.parts)) or sorted(homes)


def _digest(files: Iterable[Path]) -> str:
    whole = hashlib.sha256()
    for file in files:
        try:
            whole.update(f"{file.name}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
        except OSError:  # the module was imported from this file, and the file was removed since
            whole.update(f"{file.name}\0".encode())
    return whole.hexdigest()[:DIGITS]
