"""The questions that a topology asks in its search for the nodes of partitions."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from coordinator.errors import CoordinatorError
from coordinator.model.address import Node
from coordinator.store.script import Argument
from coordinator.store.transport.error_mapping import TransientError


@dataclass(frozen=True, slots=True)
class Question:
    """A question of a search: one command for one node. `sentinel` is True if the node is a sentinel."""

    node: Node
    command: tuple[Argument, ...]
    sentinel: bool = False


Search = Generator[Question, Any, None]


def search_error(reason: object, failure: str) -> Exception:
    """Return the error of a search that failed.

    If a node refused the question, for example because of a wrong password, that error is returned as it is. Otherwise the error is
    transient, and the search may be repeated.

    Args:
        reason: The last answer or error of a node.
        failure: A sentence about the node that the search did not find.
    """
    return reason if isinstance(reason, CoordinatorError) else TransientError(f"{failure}: {reason}", sent=False)
