"""A bug that is planted in the scripts of the simulation's server."""

from __future__ import annotations

from typing import NamedTuple

from coordinator.store.generated_lua import expand
from coordinator.store.script import Script

LUA = "coordinator/store/lua/"


class Bug(NamedTuple):
    name: str
    path: str
    old: str
    new: str
    seed: int | None = None  # a seed that notices the bug; None if no such seed is known yet
    family: str | None = None  # the family of features without which the bug does nothing; None for any seed

    def plant(self, script: Script) -> str:
        """Return the text of a script, with the bug if the bug is in the script's own file or in a shared file that it uses."""
        if "/shared/" not in self.path and not self.path.endswith(f"/{script.name}.lua"):
            return script.text
        return script.text.replace(expand(self.old), expand(self.new))
