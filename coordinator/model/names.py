"""Names of namespaces, queues and kinds, and the routes that are made of them."""

from __future__ import annotations

import re

from coordinator.errors import BadName

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


def name(text: str, what: str) -> str:
    """Return the text if it is a valid name.

    Args:
        text: The name of a namespace, queue, kind or the like.
        what: The kind of thing that has the name, for the error message: `queue`, for example.

    Raises:
        BadName: If the text is not 1 to 100 characters of A-Z a-z 0-9 _ . -
    """
    if str(text) != text or not _NAME.fullmatch(text):
        raise BadName(f"{what} {text!r} is not a valid name: use 1 to 100 characters of A-Z a-z 0-9 _ . -")
    return text


def route(queue: str, kind: str, schema: int) -> str:
    """Return the route of a run, `queue:kind@schema`. Each route has a ready queue, from which workers claim runs."""
    return f"{queue}:{kind}@{schema}"


def queue_of(route: str) -> str:
    """Return the queue of a route. This takes less time than `parse_route`."""
    return route.partition(":")[0]


def parse_route(text: str) -> tuple[str, str, int]:
    """Return the queue, the kind and the schema of a route.

    Raises:
        ValueError: The text is not a route.
    """
    queue, _, rest = text.partition(":")
    kind, _, schema = rest.rpartition("@")
    return queue, kind, int(schema)
