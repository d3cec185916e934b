"""List the keys of a namespace from `coordinator.store.keys.Keys`: the name, the type, and the method's docstring."""

from __future__ import annotations

import inspect
import re
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList

from coordinator.store.keys import Keys, type_of_key


def rows() -> list[tuple[str, str, str]]:
    """Return (key, type, what it holds) for every key, in the order of the class."""
    keys, found = Keys("NAMESPACE", 0), []
    for name, method in vars(Keys).items():
        if name.startswith("_") or not inspect.isfunction(method):
            continue
        parameters = list(inspect.signature(method).parameters)[1:]
        key = method(keys, *(f"<{parameter}>" for parameter in parameters)).replace(
            "NAMESPACE:0", "namespace:partition"
        )
        text = " ".join((inspect.getdoc(method) or "").split())
        content = re.sub(r"^Return the key of a (sorted set|\w+) (with )?", "", text)
        found.append((key, type_of_key(method), content[:1].upper() + content[1:]))
    return found


class ServerKeys(Directive):
    """`{server-keys}`: a table of all keys."""

    def run(self) -> list[nodes.Node]:
        lines = [".. list-table::", "   :header-rows: 1", "", "   * - key", "     - type", "     - what it holds"]
        for key, kind, text in rows():
            lines += [f"   * - ``{key}``", f"     - {kind}", f"     - {_escaped(text)}"]
        node = nodes.container()
        self.state.nested_parse(StringList(lines, "keys.py"), 0, node)
        return list(node.children)


def _escaped(text: str) -> str:
    return re.sub(r"([*|\\_])", r"\\\1", text)


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("server-keys", ServerKeys)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
