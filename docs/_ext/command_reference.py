"""Document a command from its typer definition: usage, help text, arguments and options with defaults and variables."""

from __future__ import annotations

import re
from typing import Any

import typer
from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList

import coordinator.cli.app
import workers.cli.app

EMPTY = "\\"  # an empty cell of an rst table
COMMON = ("url", "namespace", "as_json", "log_json", "timeout")  # documented once, above all commands


def programs() -> dict[str, Any]:
    """Return the click group of each program."""
    apps = {"coordinator": coordinator.cli.app.app, "workers": workers.cli.app.app}
    return {name: typer.main.get_command(app) for name, app in apps.items()}


def all_commands() -> dict[str, Any]:
    """Return every command that does something, by its full name."""
    found: dict[str, Any] = {}

    def walk(name: str, group: Any) -> None:
        for sub, command in group.commands.items():
            if hasattr(command, "commands"):
                walk(f"{name} {sub}", command)
            else:
                found[f"{name} {sub}"] = command

    for program, group in programs().items():
        walk(program, group)
    return found


def own_parameters(command: Any) -> list[Any]:
    return [parameter for parameter in command.params if parameter.name not in COMMON and parameter.name != "help"]


def usage(name: str, command: Any) -> str:
    """Return the usage line, with the command's own arguments and options."""
    words = [name]
    arguments = [p for p in own_parameters(command) if p.param_type_name == "argument"]
    options = [p for p in own_parameters(command) if p.param_type_name == "option"]
    words += [_name(argument) for argument in arguments]
    return " ".join([*words, *(["[OPTIONS]"] if options else [])])


class CommandOptions(Directive):
    """`{command} coordinator enqueue`: the usage line, the help text and the options of one command."""

    required_arguments = 2
    optional_arguments = 1
    final_argument_whitespace = False

    def run(self) -> list[nodes.Node]:
        name = " ".join(self.arguments)
        command = all_commands().get(name)
        if command is None:
            raise self.error(f"there is no command {name!r}")
        lines = [".. code-block:: text", "", f"   {usage(name, command)}", "", *_plain(command.help or "").splitlines()]
        lines += ["", *_table(command)]
        node = nodes.container()
        self.state.nested_parse(StringList(lines, name), 0, node)
        return list(node.children)


class CommonOptions(Directive):
    """`{common-options}`: the options that every command has."""

    def run(self) -> list[nodes.Node]:
        group = programs()["coordinator"]
        parameters = [p for p in group.params if p.name in COMMON]
        node = nodes.container()
        self.state.nested_parse(StringList(_rows(parameters), "common"), 0, node)
        return list(node.children)


def _table(command: Any) -> list[str]:
    parameters = own_parameters(command)
    return _rows(parameters) if parameters else []


def _rows(parameters: list[Any]) -> list[str]:
    lines = [".. list-table::", "   :header-rows: 1", ""]
    lines += ["   * - argument or option", "     - default", "     - variable", "     - meaning"]
    for parameter in parameters:
        lines += [
            f"   * - ``{_name(parameter)}``",
            f"     - {_default(parameter)}",
            f"     - {_variable(parameter)}",
            f"     - {_meaning(parameter)}",
        ]
    return lines


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        shown = parameter.metavar or parameter.name.upper()
        return str(shown if parameter.required or shown.startswith("[") else f"[{shown}]")
    shown = ", ".join(parameter.opts)
    return shown if parameter.is_flag else f"{shown} {parameter.metavar or _type(parameter)}"


def _type(parameter: Any) -> str:
    annotation = parameter.type_descriptor.annotation
    return {int: "INTEGER", float: "FLOAT", str: "TEXT"}.get(annotation, "VALUE")


def _default(parameter: Any) -> str:
    value = parameter.default
    if parameter.required or value is None or value is False or repr(value).startswith("Sentinel"):
        return EMPTY
    return f"``{value}``"


def _variable(parameter: Any) -> str:
    return f"``{parameter.envvar}``" if getattr(parameter, "envvar", None) else EMPTY


def _meaning(parameter: Any) -> str:
    return f"{_plain(getattr(parameter, 'help', None) or '')}{_range(parameter)}".strip() or EMPTY


def _range(parameter: Any) -> str:
    low, high = getattr(parameter, "min", None), getattr(parameter, "max", None)
    if low is not None and high is not None:
        return f" ({low:,} to {high:,})"
    return f" (at least {low:,})" if low is not None else ""


def _plain(text: str) -> str:
    """Return help text as reStructuredText: what rst would read as markup is escaped."""
    return re.sub(r"([*|\\_`])", r"\\\1", " ".join(text.split()))


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("command", CommandOptions)
    app.add_directive("common-options", CommonOptions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
