"""Plans that create a namespace and read its facts."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from coordinator.errors import NotConfigured, Unconfirmed, Unreachable
from coordinator.store.keys import Keys, Namespace
from coordinator.store.replies import pairs, text
from coordinator.store.script import Call, Request, fail_fast, read
from coordinator.store.scripts import CREATE_NAMESPACE

FORMAT = "1"


def read_facts(name: str) -> Generator[Request, Any, Namespace | None]:
    """Return the facts of a namespace, or None if it was not created yet.

    Nothing is written, so that a user with read-only rights may use this plan.

    Raises:
        NotConfigured: The namespace has a stored format that this version can't read.
    """
    reply = yield read(Keys(name, 0).at, "HGETALL", Keys(name, 0).namespace())
    return _namespace(name, pairs(reply)) if reply else None


def check_format(name: str, facts: Mapping[str, Any]) -> None:
    """Check the stored format of a namespace that exists.

    Raises:
        NotConfigured: This version can't read the format.
    """
    if text(facts["format"]) != FORMAT:
        raise NotConfigured(
            f"namespace {name!r} has format {text(facts['format'])}, but this version reads format {FORMAT}: start this process "
            "with the version that the other processes of the namespace use, or give it another namespace"
        )


def _namespace(name: str, facts: Mapping[str, Any]) -> Namespace:
    check_format(name, facts)
    return Namespace(name, int(facts["partitions"]), text(facts["durability"]), text(facts["birth"]))


def create(
    name: str, *, birth: str, partitions: int | None = None, durability: str | None = None, clock: str = "server"
) -> Generator[Request | list[Request], Any, Namespace]:
    """Create a namespace if it does not exist, and return its facts. Facts that are stored already never change.

    A partition that can't be reached gets its copy of the facts later. Until then it answers that it does not know the namespace,
    and the caller then uses `create_missing_copies`.

    Args:
        name: The name of the namespace.
        birth: A random mark that distinguishes this namespace from an earlier one of the same name.
        partitions: The number of partitions. None accepts any number, and creates a new namespace with one partition.
        durability: The durability level. None accepts any level, and creates a new namespace with 'local'.
        clock: 'server', or 'test' for a namespace in which callers pass in the time.

    Raises:
        NotConfigured: The namespace exists with another number of partitions or another durability.
    """
    asked = durability or "local"
    if durability is not None and (there := (yield from read_facts(name))) is not None:
        # This check comes before the write, because the write would wait for replicas that the namespace does not promise.
        _check_same(there, partitions, durability)
    first = yield _creation(Keys(name, 0, asked), birth, partitions or 1, asked, clock)
    facts = pairs(first[1])
    have = _namespace(name, facts)
    if have.keys(0).at.replicas > Keys(name, 0, asked).at.replicas:
        # The facts must be confirmed by as many replicas as later writes.
        yield _creation(have.keys(0), have.birth, have.partitions, have.durability, text(facts["clock"]))
    _check_same(have, partitions, durability)
    yield from _copy(have, text(facts["clock"]))
    return have


def _check_same(have: Namespace, partitions: int | None, durability: str | None) -> None:
    if partitions is not None and partitions != have.partitions:
        raise NotConfigured(
            f"namespace {have.name!r} has {have.partitions} partitions, not {partitions}: their number can't be changed; "
            "use another namespace"
        )
    if durability is not None and durability != have.durability:
        raise NotConfigured(
            f"namespace {have.name!r} has durability {have.durability!r}, not {durability!r}: it can't be changed; "
            "use another namespace"
        )


def create_missing_copies(name: str, birth: str) -> Generator[Request | list[Request], Any, bool]:
    """Write the facts to every partition, after one of them answered that it does not know the namespace.

    Returns:
        False if the namespace has another birth mark or none: it was flushed, or created again.
    """
    facts = pairs((yield read(Keys(name, 0).at, "HGETALL", Keys(name, 0).namespace())))
    if not facts or text(facts["birth"]) != birth:
        return False
    yield from _copy(_namespace(name, facts), text(facts["clock"]))
    return True


def _copy(have: Namespace, clock: str) -> Generator[list[Request], Any, None]:
    """Write the facts of a namespace to every partition except partition 0. Skip a partition that can't be reached."""
    copies: list[Request] = [
        fail_fast(_creation(keys, have.birth, have.partitions, have.durability, clock))
        for keys in have.everywhere()[1:]
    ]
    replies = (yield copies) if copies else []
    for reply in replies:
        if isinstance(reply, Exception) and not isinstance(reply, (Unreachable, Unconfirmed)):
            raise reply


def read_birth(keys: Keys) -> Generator[Request, Any, str]:
    """Return the birth mark of the namespace; empty if it was not created."""
    reply = yield read(keys.at, "HGET", keys.namespace(), "birth")
    return text(reply or "")


def _creation(keys: Keys, birth: str, partitions: int, durability: str, clock: str) -> Call:
    return CREATE_NAMESPACE.call(
        keys.at, format=FORMAT, partitions=partitions, durability=durability, birth=birth, clock=clock
    )
