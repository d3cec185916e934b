"""Groups of commands. The module of a command is imported when the command is called. `--help` is plain text.

`coordinator --help` imports neither the modules of the commands, nor the client, nor rich. A group has the name and the first
sentence of each command, and the formatter of click writes `--help`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from coordinator.cli.framework.exits import WRONG_USAGE


class LazyCommand(NamedTuple):
    """A command that is imported when it is called.

    Attributes:
        name: The name of the command.
        target: Where it is defined, as `module:name`: a function, or a typer app with commands of its own.
        summary: The first sentence of its help, which the help of the group shows.
    """

    name: str
    target: str
    summary: str


class Command(TyperCommand):
    """A command whose help is plain text, with the common options in a section of their own."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and options, each panel as a section."""
        _write_parameters(self, ctx, formatter)


class Group(TyperGroup):
    """A group whose help is plain text, with the common options in a section of their own."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, each panel as a section, and then the commands."""
        _write_parameters(self, ctx, formatter)
        self.format_commands(ctx, formatter)


class _Commands(MutableMapping[str, Any]):
    """The commands of a group by name. A command is imported when it is read."""

    def __init__(self, commands: tuple[LazyCommand, ...], build: Callable[[LazyCommand, Any], Any]) -> None:
        self._lazy = {command.name: command for command in commands}
        self._build = build
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            command = self._lazy[name]
            module, _, attribute = command.target.partition(":")
            self._loaded[name] = self._build(command, getattr(import_module(module), attribute))
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._lazy[name]
        self._loaded.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter({**self._lazy, **self._loaded})

    def __len__(self) -> int:
        return len({**self._lazy, **self._loaded})


def lazy_group(commands: tuple[LazyCommand, ...], build: Callable[[LazyCommand, Any], Any]) -> type[Group]:
    """Return a group class with these commands.

    Args:
        commands: The commands, in the order in which the help lists them.
        build: Makes the click command from the function or the typer app that a command names.
    """

    class LazyGroup(Group):
        """A group that imports a command when it is called."""

        lazy_commands = commands

        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            self.commands = _Commands(commands, build)

        def list_commands(self, ctx: Any) -> list[str]:
            """Return the names of the commands, without importing them."""
            return list(self.commands)

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            """Write the name and the first sentence of each command, without importing the command."""
            with formatter.section("Commands"):
                formatter.write_dl([(command.name, command.summary) for command in commands])

    return LazyGroup


def new_subapp(help: str) -> typer.Typer:
    """Return the app of a command that has commands of its own. Without a command, the app prints its help."""
    app = typer.Typer(help=help, cls=Group, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.callback(invoke_without_command=True)(print_help)
    return app


def print_help(ctx: typer.Context) -> None:
    """Print the help if no command was given, and exit as after wrong usage."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit(WRONG_USAGE)


def _write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            ordinary = "Arguments" if parameter.param_type_name == "argument" else "Options"
            panel = getattr(parameter, "rich_help_panel", None)
            sections.setdefault(panel if isinstance(panel, str) else ordinary, []).append(record)
    for title, records in sections.items():
        if records:
            with formatter.section(title):
                formatter.write_dl(records)
