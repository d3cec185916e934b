"""Every script of the store. Scripts are discovered: each Lua file outside lua/shared is one.

A script is imported under its name in capitals, for example `from coordinator.store.scripts import ENQUEUE` for
lua/runs/enqueue.lua.
"""

from __future__ import annotations

from coordinator.store.script import Script, script_names

SCRIPTS = tuple(Script(name) for name in script_names())
_BY_CONSTANT = {script.name.upper(): script for script in SCRIPTS}


def __getattr__(constant: str) -> Script:
    """Return the script of a constant such as ENQUEUE."""
    try:
        return _BY_CONSTANT[constant]
    except KeyError:
        raise AttributeError(f"there is no Lua file {constant.lower()}.lua under coordinator/store/lua") from None
