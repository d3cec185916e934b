"""Plans of rates: set and read the rates of external calls, and start and end such calls."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coordinator.errors import BadCall, Changed, Unreadable
from coordinator.model.policies.rates import Bucket, RateLimit, decode_rate, estimate_wait
from coordinator.store.keys import Keys
from coordinator.store.replies import pairs, require_all, text, word
from coordinator.store.script import Request, read
from coordinator.store.scripts import ACQUIRE, BACK_OFF, FINISH, RATE

TRIES = 20  # how often a change is tried while other clients change the same rate


def set_rate(keys: Keys, name: str, rate: str, operation: str, now: str = "") -> Generator[Request, Any, bool]:
    """Set or remove a rate. Return False if the rate already had this value.

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


def read_rates(parts: Sequence[Keys]) -> Generator[list[Request], Any, list[RateLimit]]:
    """Return the rates of some partitions, sorted by name.

    Each rate has the numbers of running and waiting calls, and the time that a new call would wait.
    """
    replies = require_all((yield [read(keys.at, "HGETALL", keys.rates()) for keys in parts]))
    found = [
        (keys, text(stored), rate)
        for keys, reply in zip(parts, replies, strict=True)
        for name, stored in pairs(reply).items()
        if (rate := decode_rate(name, text(stored)))
    ]
    if not found:
        return []
    requests = [request for keys, _, rate in found for request in _state_of(keys, rate.name)]
    *states, now = require_all((yield [*requests, read(found[0][0].at, "TIME")]))
    clock = int(now[0]) * 1000 + int(now[1]) / 1000
    rates = []
    for index, (_, stored, rate) in enumerate(found):
        held, waiting, bucket, first = states[4 * index : 4 * index + 4]
        level, at, resumes, ticket = map(_number, bucket)
        ahead = max(0.0, ticket - float(first[1])) if first else 0.0
        wait = estimate_wait(stored, Bucket(level, at, resumes, ahead), clock)
        rates.append(replace(rate, held=held, waiting=waiting, wait=wait))
    return sorted(rates, key=lambda rate: rate.name)


def _number(stored: bytes | None) -> float:
    """Return a number of a bucket. It is 0 if it is missing, can't be read or is not finite."""
    try:
        number = float(stored or 0)
    except ValueError:
        return 0.0
    return number if math.isfinite(number) else 0.0


def _state_of(keys: Keys, name: str) -> tuple[Request, ...]:
    return (
        read(keys.at, "ZCARD", keys.holders(name)),
        read(keys.at, "ZCARD", keys.turns(name)),
        read(keys.at, "HMGET", keys.bucket(name), "level", "at", "resumes", "ticket"),
        read(keys.at, "ZRANGE", keys.turns(name), 0, 0, "WITHSCORES"),
    )


@dataclass(frozen=True, slots=True)
class Acquired:
    """The answer to acquire.lua.

    Attributes:
        word: ok (the call may start), wait, old (the request has ended, or a later one overtook it), gone (the worker has left or
            was declared lost), unknown (there is no such rate), large (the cost is above the burst), bad or unreadable.
        wait_ms: If the word is wait, the milliseconds after which to ask again.
        burst: If the word is large, the burst.
    """

    word: str
    wait_ms: int = 0
    burst: int = 0


def acquire(
    keys: Keys, worker: str, name: str, number: int, cost: int, now: str = ""
) -> Generator[Request, Any, Acquired]:
    """Ask to start an external call. The worker asks again, with the same number, until the call may start.

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
    """Record that an external call has ended, or that a waiting request was withdrawn. Return the answer word of finish.lua.

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
    """Let no call of a rate start for some time. Return the answer word of back_off.lua.

    Args:
        keys: The keys of the partition of the name.
        worker: The worker in this partition.
        name: The name of the rate.
        number: The number of the request whose call asks for the back-off.
        pause_ms: The length of the back-off in milliseconds.
        now: The time in ms, for namespaces with the test clock.
    """
    call = BACK_OFF.call(keys.at, now=now, worker=worker, name=name, number=number, pause=pause_ms)
    return word((yield call))


def describe_damage(name: str) -> str:
    """Return the error message for a rate whose keys have another type."""
    return f"a key of rate {name!r} holds a value of another type; 'coordinator doctor' finds it"
