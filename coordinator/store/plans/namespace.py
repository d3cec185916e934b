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
    """The facts of a namespace, if it was founded. Nothing is written: whoever may only read comes this way, too."""
    reply = yield read(Keys(name, 0).at, "HGETALL", Keys(name, 0).namespace())
    return _namespace(name, pairs(reply)) if reply else None


def _namespace(name: str, facts: Mapping[str, Any]) -> Namespace:
    if text(facts["format"]) != FORMAT:
        raise NotConfigured(f"namespace {name!r} has format {text(facts['format'])}, and this version reads {FORMAT}")
    return Namespace(name, int(facts["partitions"]), text(facts["durability"]), text(facts["birth"]))


def create(
    name: str, *, birth: str, partitions: int | None = None, durability: str | None = None, clock: str = "server"
) -> Generator[Request | list[Request], Any, Namespace]:
    """The facts of a namespace; the first user fixes them. Asking for others than it has is refused. A partition that can't be
    reached is left to who comes there first: it answers that it does not know the namespace."""
    asked = durability or "local"
    if durability is not None and (there := (yield from read_facts(name))) is not None:
        _same(there, partitions, durability)  # before it is written, and waited for replicas that it does not promise
    first = yield _found(Keys(name, 0, asked), birth, partitions or 1, asked, clock)
    facts = pairs(first[1])
    have = _namespace(name, facts)
    if have.keys(0).at.replicas > Keys(name, 0, asked).at.replicas:  # what was read is to be as sure as what is written
        yield _found(have.keys(0), have.birth, have.partitions, have.durability, text(facts["clock"]))
    _same(have, partitions, durability)
    yield from _copy(have, text(facts["clock"]))
    return have


def _same(have: Namespace, partitions: int | None, durability: str | None) -> None:
    if partitions is not None and partitions != have.partitions:
        raise NotConfigured(
            f"namespace {have.name!r} has {have.partitions} partitions for good, not {partitions}: use another namespace"
        )
    if durability is not None and durability != have.durability:
        raise NotConfigured(f"namespace {have.name!r} has durability {have.durability!r}, not {durability!r}")


def create_missing_copies(name: str, birth: str) -> Generator[Request | list[Request], Any, bool]:
    """Where a partition does not know the namespace: whether it was only not there when others were founded, and knows it now."""
    facts = pairs((yield read(Keys(name, 0).at, "HGETALL", Keys(name, 0).namespace())))
    if not facts or text(facts["birth"]) != birth:
        return False
    yield from _copy(_namespace(name, facts), text(facts["clock"]))
    return True


def _copy(have: Namespace, clock: str) -> Generator[list[Request], Any, None]:
    """The facts in each partition. Those that can't be reached are left out."""
    copies: list[Request] = [
        fail_fast(_found(keys, have.birth, have.partitions, have.durability, clock)) for keys in have.everywhere()[1:]
    ]
    replies = (yield copies) if copies else []
    for reply in replies:
        if isinstance(reply, Exception) and not isinstance(reply, (Unreachable, Unconfirmed)):
            raise reply


def read_birth(keys: Keys) -> Generator[Request, Any, str]:
    """The mark that the namespace was founded with; empty where it was not."""
    reply = yield read(keys.at, "HGET", keys.namespace(), "birth")
    return text(reply or "")


def _found(keys: Keys, birth: str, partitions: int, durability: str, clock: str) -> Call:
    return CREATE_NAMESPACE.call(
        keys.at, format=FORMAT, partitions=partitions, durability=durability, birth=birth, clock=clock
    )
