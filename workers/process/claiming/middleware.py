"""Find the middleware of claimed runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coordinator.middleware import MiddlewareChain
from coordinator.store.plans.workers import Claimed
from workers.handlers.handler import Handler

_NONE: Mapping[str, MiddlewareChain] = {}


class ClaimedMiddleware:
    """Finds the middleware of all runs of a claim at once. Most runs are not sampled, and a call for each run would cost more.

    Args:
        chains: The middleware of the kinds that have some.
        kinds: The number of kinds that the process has handlers for.
    """

    def __init__(self, chains: Mapping[str, MiddlewareChain], kinds: int) -> None:
        self._chains = chains
        different = {id(chain): chain for chain in chains.values()}
        self._only = next(iter(different.values())) if len(different) == 1 and len(chains) == kinds else None

    def of(self, claims: Sequence[tuple[Claimed, Handler[..., Any]]]) -> Mapping[str, MiddlewareChain]:
        """Return the middleware of those runs that have some, by the id of the run."""
        if not self._chains:
            return _NONE
        if self._only is not None:
            return self._only.of_runs([claimed.id for claimed, _ in claims])
        found = dict[str, MiddlewareChain]()
        for claimed, handler in claims:
            chain = self._chains.get(handler.kind)
            if chain is not None and (own := chain.of_run(claimed.id)):
                found[claimed.id] = own
        return found
