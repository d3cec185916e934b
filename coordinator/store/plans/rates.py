"""Plans of rates: set and read the rates of calls to the outside, and start and end such calls."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

from coordinator.errors import BadCall, Changed, Unreadable
from coordinator.model.policies.rates import RateLimit, decode_rate
from coordinator.store.keys import Keys
from coordinator.store.replies import pairs, require_all, text, word
from coordinator.store.script import Request, read
from coordinator.store.scripts import ACQUIRE, BACK_OFF, FINISH, RATE

TRIES = 20  # how often a change is tried while other clients change the same rate


def set_rate(keys: Keys, name: str, rate: str, operation: str, now: str = "") -> Generator[Request, Any, bool]:
    """Set or remove a rate. Return False if the rate was like this before.

    Args:
        keys: The keys of the partition of the name.
        name: The name.
        rate: The rate in its stored form; empty to remove it.
        operation: A random mark of this change, by which the server recognises a repeated call.
        now: The time in ms, for namespaces with the test clock.

    Raises:
        Changed: Other clients kept changing the rate at the same time.
        Unreadable: A key of the rate has another type.
    """
    seen = ""
    for _ in range(TRIES):
        reply = yield RATE.call(keys.at, now=now, name=name, rate=rate, seen=seen, operation=operation)
        match word(reply):
            case "changed":
                seen = text(reply[1])
            case "unreadable":
                raise Unreadable(describe_damage(name))
            case "bad":
                raise BadCall(f"the server refused the rate {rate!r} of {name!r}")
            case answer:
                return answer == "ok"
    raise Changed(f"rate {name!r} was not changed: other clients keep changing it; call again")


def read_rates(keys: Keys) -> Generator[Request | list[Request], Any, list[RateLimit]]:
    """Return the rates of a partition, with the numbers of calls that are under way and that wait."""
    stored = pairs((yield read(keys.at, "HGETALL", keys.rates())))
    found = [rate for name, value in stored.items() if (rate := decode_rate(name, text(value)))]
    counts = yield [
        read(keys.at, "ZCARD", key) for rate in found for key in (keys.holders(rate.name), keys.turns(rate.name))
    ]
    numbers = iter(require_all(counts))
    return [replace(rate, held=next(numbers), waiting=next(numbers)) for rate in found]


@dataclass(frozen=True, slots=True)
class Acquired:
    """The answer to acquire.lua.

    Attributes:
        word: ok, wait, old, gone, unknown, large, bad or unreadable.
        wait_ms: The ms after which to ask again.
        burst: The burst, if the cost is above it.
    """

    word: str
    wait_ms: int = 0
    burst: int = 0


def acquire(
    keys: Keys, worker: str, name: str, number: int, cost: int, now: str = ""
) -> Generator[Request, Any, Acquired]:
    """Start a call to the outside, or wait for its turn. The worker asks with the same number until it may start.

    Args:
        keys: The keys of the partition of the name.
        worker: The worker in this partition.
        name: The name of the rate.
        number: The number of the request. Each request of a worker has a higher one.
        cost: The tokens to reserve.
        now: The time in ms, for namespaces with the test clock.
    """
    fixed = {"now": now, "worker": worker}
    reply = yield ACQUIRE.each(keys.at, f"{worker}-{number}", fixed, name=name, number=number, cost=cost)
    match word(reply):
        case "wait":
            return Acquired("wait", wait_ms=int(reply[1]))
        case "large":
            return Acquired("large", burst=int(reply[1]))
        case answer:
            return Acquired(answer)


def finish(
    keys: Keys, worker: str, name: str, number: int, cost: int | None, now: str = ""
) -> Generator[Request, Any, str]:
    """End a request. Return the answer word of finish.lua.

    Args:
        keys: The keys of the partition of the name.
        worker: The worker in this partition.
        name: The name of the rate.
        number: The number of the request.
        cost: The tokens that the call has cost; None if it cost what it reserved.
        now: The time in ms, for namespaces with the test clock.
    """
    fixed, spent = {"now": now, "worker": worker}, "" if cost is None else cost
    return word((yield FINISH.each(keys.at, f"{worker}-{number}", fixed, name=name, number=number, cost=spent)))


def back_off(
    keys: Keys, worker: str, name: str, number: int, pause_ms: int, now: str = ""
) -> Generator[Request, Any, str]:
    """Let no call of the rate start for some time. Return the answer word of back_off.lua."""
    call = BACK_OFF.call(keys.at, now=now, worker=worker, name=name, number=number, pause=pause_ms)
    return word((yield call))


def describe_damage(name: str) -> str:
    """Return the sentence for a rate whose keys have another type."""
    return f"a key of rate {name!r} holds a value of another type; 'coordinator doctor' finds it"
