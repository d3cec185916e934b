"""All scripts of the store. Each Lua file outside lua/shared is a script, and is found by its file name.

A script is imported under its name in capitals, for example `from coordinator.store.scripts import ENQUEUE` for
lua/runs/enqueue.lua.
"""

from __future__ import annotations

from coordinator.store.script import Script, script_names

SCRIPTS = tuple(Script(name) for name in script_names())
_BY_CONSTANT = {script.name.upper(): script for script in SCRIPTS}


def __getattr__(constant: str) -> Script:
    """Return the script for a constant such as ENQUEUE.

    Raises:
        AttributeError: There is no Lua file of this name.
    """
    try:
        return _BY_CONSTANT[constant]
    except KeyError:
        raise AttributeError(f"there is no Lua file {constant.lower()}.lua under coordinator/store/lua") from None
