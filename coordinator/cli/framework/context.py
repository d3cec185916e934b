"""The context of a command: its server and namespace, and the consoles to which it prints."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from coordinator.errors import BadOption
from coordinator.printable import json_text

if TYPE_CHECKING:  # `--help` imports this module, and must not import the client and rich
    from rich.console import Console

    from coordinator.client.client import Client
    from coordinator.config import Settings

DEFAULT_TIMEOUT = 5.0
_WIDTH_OF_A_FILE = 1000  # a table that is written to a file or a pipe is not squeezed into 80 columns


@dataclass(frozen=True)
class CommandContext:
    """The values of the common options, and the methods that every command needs.

    Attributes:
        timeout: Seconds to wait for an answer of the server; None for the default.
        typed_timeout: The same, if --timeout stands after the subcommand. A value from the environment is left out.
    """

    url: str | None = None
    namespace: str | None = None
    as_json: bool = False
    log_json: bool = False
    timeout: float | None = None
    typed_timeout: float | None = None

    @cached_property
    def settings(self) -> Settings:
        """The settings of the command: the server and the namespace.

        Raises:
            BadOption: The URL is memory://, a store that is lost when the command exits.
        """
        from coordinator.config import settings

        found = settings(self.url, self.namespace, DEFAULT_TIMEOUT if self.timeout is None else self.timeout)
        if found.address.scheme == "memory":
            raise BadOption(
                "a command can't use memory://, which exists only inside one process: "
                "use --url redis://host:6379/0 or --url embedded://./dir"
            )
        return found

    @cached_property
    def console(self) -> Console:
        """The console for answers: stdout."""
        return _console(stderr=False)

    @cached_property
    def stderr(self) -> Console:
        """The console for progress bars and remarks that are not part of the answer."""
        return _console(stderr=True)

    def connect(self) -> Client:
        """Return a client for the server and the namespace."""
        from coordinator.client.client import Client

        return Client(self.settings.url, self.settings.namespace, self.settings.timeout)

    def answer(self, value: Any, *shown: Any) -> None:
        """Print the answer of the command: `value` as JSON with --json, otherwise `shown`."""
        if self.as_json:
            from coordinator.views.json_data import to_json_data

            sys.stdout.write(json_text(to_json_data(value), indent=2) + "\n")
            return
        for part in shown:
            self.console.print(part)

    def configure_logs(self, level: int) -> None:
        """Write log lines of this level and above to stderr."""
        from coordinator import logs

        logs.configure(as_json=self.log_json, level=level)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    # Ids, routes and users' texts are not markup: rich would raise an error for a name such as [/x].
    console = Console(stderr=stderr, highlight=False, soft_wrap=False, markup=False, emoji=False)
    if console.is_terminal:
        return console
    return Console(stderr=stderr, highlight=False, width=_WIDTH_OF_A_FILE, markup=False, emoji=False)
