"""One request to the API, after its caller, its parameters and its body were checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from coordinator.client.async_client import AsyncClient
from coordinator.client.handles import AsyncHandle
from coordinator.client.operations.open_namespace import OpenNamespace
from coordinator.model.run import RunView
from coordinator.web.rest.cursors import make_cursor_key
from coordinator.web.rest.limits import Limits
from coordinator.web.rest.owners import Ownership
from coordinator.web.streams import OpenStreams


@dataclass(frozen=True, slots=True)
class Call:
    """A request to the API, after it was checked.

    Attributes:
        request: The request of Starlette.
        client: The client that carries out the request.
        ownership: The rules for the runs that the caller may see and enqueue.
        caller: The name under which the caller's streams and waiting requests are counted.
        values: The parameters by name; None for a parameter that is missing and has no default.
        body: The value of the body; ABSENT if there is none.
        limits: The limits of the API.
        streams: The open streams and waiting requests of all callers.
    """

    request: Request
    client: AsyncClient
    ownership: Ownership
    caller: str
    values: Mapping[str, Any]
    body: Any
    limits: Limits
    streams: OpenStreams

    @property
    def handle(self) -> AsyncHandle[Any]:
        """A handle of the run that the path names. Use it only after `view`, which checks the owner.

        Raises:
            NotFound: The path does not have a run id.
        """
        return self.client.handle(self.values["id"])

    async def view(self) -> RunView:
        """Read the run that the path names, and return a view of it if the caller may see the run.

        Raises:
            NotFound: There is no such run, or it has another owner.
        """
        return self.ownership.check(await self.handle.view())

    async def cursor_key(self) -> bytes:
        """Return the key that encrypts cursors for callers that may see only their own runs."""
        return make_cursor_key((await self.client._do(OpenNamespace.space)).birth)
