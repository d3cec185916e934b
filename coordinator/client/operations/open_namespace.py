"""The namespace of a client. The first operation that needs the facts of the namespace reads them from the server."""

from __future__ import annotations

import logging
import os
from typing import Any, TypeVar

from coordinator.clock import Clock
from coordinator.errors import BadName, NotConfigured, NotFound, Unconfirmed, Unreachable
from coordinator.middleware import NO_MIDDLEWARE, MiddlewareChain
from coordinator.model.address import Address
from coordinator.model.run_id import RunIds, partition_of
from coordinator.store import server_checks
from coordinator.store.keys import Keys, Namespace
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.plans.merge import Plan
from coordinator.store.script import Request, read

log = logging.getLogger(__name__)

T = TypeVar("T")


class OpenNamespace:
    """The namespace of a client: the facts that the server stores about it, a clock, and a maker of run ids.

    The threads of a client share one such object. The facts are replaced when they are first read, and after the namespace was
    created again.

    Attributes:
        clock: The clock that run ids are made with.
        ids: The maker of run ids.
        facts: The facts of the namespace; None until an operation has read them.
        trusted: For each partition, the monotonic time until which the client assumes that all its processes support groups.
        middleware: The middleware of the client.
    """

    def __init__(
        self, name: str, clock: Clock, *, check: Address | None, middleware: MiddlewareChain = NO_MIDDLEWARE
    ) -> None:
        """Store the arguments, without connecting to the server.

        Args:
            name: The name of the namespace.
            clock: The clock that run ids are made with.
            check: The server whose configuration is checked before its first use, or None to check nothing.
            middleware: The middleware of the client.
        """
        self.clock = clock
        self.ids = RunIds()
        self.facts: Namespace | None = None
        self.trusted: dict[int, float] = {}
        self.middleware = middleware
        self._skew = 0.0  # seconds that are added to the clock for new ids
        self._name, self._check = name, check

    def now(self) -> float:
        """Return the Unix time for new ids: the clock of this machine, corrected if the server found it wrong."""
        return self.clock.now() + self._skew

    def follow_clock(self, server_now: float) -> None:
        """Make new ids by the server's clock from now on. Call this after the server refused ids because of their time.

        Args:
            server_now: The Unix time of the server, in seconds.
        """
        self._skew = server_now - self.clock.now()
        self.ids = RunIds()  # the old maker of ids never makes an id with an earlier time

    def space(self) -> Plan[Namespace]:
        """Return the facts of the namespace. The first call checks the server, and creates the namespace if it does not exist.

        Raises:
            NotConfigured: The server's configuration could lose runs.
        """
        if self.facts is None:
            if self._check is not None:
                found = yield from server_checks.examine(self._check, self._name)
                server_checks.refuse(found)
                for finding in found:
                    log.warning("%s", finding.sentence)
            known = yield from reading(namespace_plans.read_facts(self._name))
            self.facts = known or (yield from namespace_plans.create(self._name, birth=new_mark()))
        return self.facts

    def recreate(self, before: Namespace) -> Plan[Namespace]:
        """Read the facts again and return them. Create the namespace if it does not exist.

        Call this after the server answered that the namespace has another birth mark than `before`. That happens when the server
        was flushed or restored from an old backup.

        Raises:
            NotConfigured: The namespace has another number of partitions now.
        """
        self.facts = space = yield from namespace_plans.create(self._name, birth=new_mark())
        if space.partitions != before.partitions:
            raise NotConfigured(
                f"namespace {self._name!r} was created again with {space.partitions} partitions instead of "
                f"{before.partitions}; nothing was enqueued: call again"
            )
        if space.birth != before.birth:
            log.warning("namespace %r was created again since it was opened: its earlier runs are gone", self._name)
        return space

    def keys(self, id: str) -> Plan[Keys]:
        """Return the keys of a run's partition.

        Raises:
            NotFound: The id is not a run id of this namespace.
        """
        space = self.facts or (yield from self.space())
        try:
            return space.keys(partition_of(id, space.partitions))
        except BadName as error:
            raise NotFound(str(error)) from None

    def fields(self, keys: Keys, id: str, *fields: str) -> Plan[list[Any]]:
        """Return the values of these fields of a stored run.

        Raises:
            NotFound: The first field is missing, so the run does not exist.
        """
        values: list[Any] = yield from reading(_ask(read(keys.at, "HMGET", keys.run(id), *fields)))
        if values[0] is None:
            raise run_not_found(id)
        return values


def new_mark() -> str:
    """Return a random mark: for the birth of a namespace, the generation of a schedule, or one change of a run.

    By this mark, a script that is sent twice recognizes that the change was already made.
    """
    return os.urandom(8).hex()


def run_not_found(id: str) -> NotFound:
    """Return the error for a run that does not exist."""
    return NotFound(f"there is no run {id}: it was never enqueued in this namespace, or its retention is over")


def reading(plan: Plan[T]) -> Plan[T]:
    """Carry out a plan that only reads, and return its result.

    A read that got no answer has changed nothing. So the error is Unreachable, where another plan would raise Unconfirmed.
    """
    try:
        return (yield from plan)
    except Unconfirmed as error:
        raise as_reading_error(error) from None


def as_reading_error(error: Exception) -> Exception:
    """Return Unreachable instead of Unconfirmed, and every other error unchanged."""
    return Unreachable(str(error).partition(";")[0]) if isinstance(error, Unconfirmed) else error


def _ask(request: Request) -> Plan[Any]:
    return (yield request)
