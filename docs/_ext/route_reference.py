"""Document the routes of the HTTP API from their table, and the problems from the table of statuses."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList

from coordinator.web.problems import STATUSES
from coordinator.web.rest.endpoint import Endpoint
from coordinator.web.rest.routes import ROUTES

HIDDEN = ("CoordinatorError", "Refused", "ResultTimeout", "BadCall")  # base classes, and errors that no route answers


class HttpRoutes(Directive):
    """`{http-routes}`: each route with its parameters, body, answers and problems."""

    def run(self) -> list[nodes.Node]:
        lines = [line for endpoint in ROUTES for line in _route(endpoint)]
        node = nodes.container()
        self.state.nested_parse(StringList(lines, "routes.py"), 0, node)
        return list(node.children)


class HttpProblems(Directive):
    """`{http-problems}`: the status of each error of the library."""

    def run(self) -> list[nodes.Node]:
        by_status: dict[int, list[str]] = defaultdict(list)
        for error, status in STATUSES.items():
            if error.__name__ not in HIDDEN:
                by_status[status].append(f"``{error.__name__}``")
        lines = [".. list-table::", "   :header-rows: 1", "", "   * - status", "     - errors"]
        for status, names in sorted(by_status.items()):
            lines += [f"   * - {status}", f"     - {', '.join(names)}"]
        node = nodes.container()
        self.state.nested_parse(StringList(lines, "problems.py"), 0, node)
        return list(node.children)


def _route(endpoint: Endpoint) -> list[str]:
    lines = ["", f".. rubric:: {endpoint.method} {endpoint.path}", "", _rst(endpoint.text), ""]
    rows = [(f"``{p.name}``", p.place, f"{_rst(p.text)}{_default(p.schema)}") for p in endpoint.parameters]
    if endpoint.body is not None:
        fields = ", ".join(f"``{name}``" for name in endpoint.body.schema.get("properties", {}))
        rows.append(("body", "JSON", _rst(endpoint.body.text) + (f" Fields: {fields}." if fields else "")))
    rows += [(str(status), "answer", _rst(answer.text)) for status, answer in endpoint.answers.items()]
    rows += [(str(status), "problem", _rst(text)) for status, text in sorted(endpoint.problems.items())]
    lines += [".. list-table::", "   :widths: 20 12 68", ""]
    for first, second, third in rows:
        lines += [f"   * - {first}", f"     - {second}", f"     - {third}"]
    return [*lines, ""]


def _default(schema: Any) -> str:
    default = schema.get("default")
    return "" if default is None else f" Default: ``{str(default).lower()}``."


def _rst(text: str) -> str:
    """Return Markdown text with `code` as reStructuredText."""
    return re.sub(r"`([^`]+)`", r"``\1``", text)


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("http-routes", HttpRoutes)
    app.add_directive("http-problems", HttpProblems)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
