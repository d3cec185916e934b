"""Runs over HTTP (extra `web`): an ASGI application to mount in yours, and the application that `coordinator web` serves.

Nothing else in the library imports this package, so that Starlette and uvicorn are needed only where it is used.
"""

from coordinator.web.auth import Access, Role
from coordinator.web.rest.app import api
from coordinator.web.rest.limits import Limits
from coordinator.web.rest.owners import FindOwner, Kinds

__all__ = ["Access", "FindOwner", "Kinds", "Limits", "Role", "api"]
