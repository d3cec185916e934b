"""A bug that is planted in the scripts of the simulation's server."""

from __future__ import annotations

from typing import NamedTuple

from coordinator.store.generated_lua import expand

LUA = "coordinator/store/lua/"


class Bug(NamedTuple):
    name: str
    path: str
    old: str
    new: str
    seed: int | None = None  # a seed that notices the bug; None if no such seed is known yet
    family: str | None = None  # the family of features without which the bug does nothing; None for any seed

    def plant(self, text: str) -> str:
        """Return the script with the bug, if the text of the bug is part of it."""
        return text.replace(expand(self.old), expand(self.new))
