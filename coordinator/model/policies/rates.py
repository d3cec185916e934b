"""Rates of external calls: how many tokens all processes together may use per unit of time, and how many calls may run at once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from coordinator.errors import BadOption
from coordinator.model.limits import MOST_AT_ONCE

UNITS: Final = {
    "s": 1,
    "sec": 1,
    "second": 1,
    "m": 60,
    "min": 60,
    "minute": 60,
    "h": 3600,
    "hour": 3600,
    "d": 86_400,
    "day": 86_400,
}
UNIT_NAMES: Final = {1: "s", 60: "min", 3600: "h", 86_400: "day"}
LONGEST_BACK_OFF: Final = 86_400.0  # seconds
_RATE = re.compile(r"([0-9][0-9_,]*) */ *([a-z]+)")
_NONE = "-"  # the stored form of a limit that does not exist


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A limit of external calls, which all processes of the namespace share.

    Attributes:
        name: The name that handlers give to `run.limit`.
        rate: The rate, for example `90000/min`; None if only the number of simultaneous calls is limited.
        burst: The number of tokens that may be used at one moment, after a time without calls; None without a rate.
        at_once: The number of calls that may be under way at the same time; None for no limit.
        held: The number of calls that are under way.
        waiting: The number of calls that wait.
        wait: Seconds until a call that costs 1 and asks now may start, as far as the rate, the calls before it and a back-off
            decide. How long it waits for one of `at_once` places is not known, and does not count.
    """

    name: str
    rate: str | None
    burst: int | None
    at_once: int | None
    held: int = 0
    waiting: int = 0
    wait: float = 0.0


def parse_rate(rate: str) -> tuple[int, int]:
    """Return the amount and the seconds of a rate such as `90000/min`.

    Raises:
        BadOption: If the text is not a rate.
    """
    found = _RATE.fullmatch(str(rate).strip().lower())
    amount = int(re.sub("[_,]", "", found[1])) if found else 0
    if found is None or found[2] not in UNITS or not 1 <= amount <= MOST_AT_ONCE:
        raise BadOption(f"rate {rate!r:.80} is not a rate such as '90000/min': give a number and one of s, min, h, day")
    return amount, UNITS[found[2]]


def check_cost(cost: object, what: str = "cost") -> int:
    """Return the cost of a call, or another number of tokens or calls, if it is valid. `what` is its name for the error message.

    Raises:
        BadOption: It is not a whole number from 0 to 999,999,999.
    """
    if type(cost) is not int or not 0 <= cost <= MOST_AT_ONCE:
        raise BadOption(f"{what} {cost!r:.80} is not a whole number from 0 to {MOST_AT_ONCE:,}")
    return cost


def encode_rate(rate: str | None, burst: int | None, at_once: int | None) -> str:
    """Return the stored form of a rate, which rate.lua takes: "<tokens> <ms> <burst> <at once>", with "-" for no limit.

    Raises:
        BadOption: An option is not valid, or neither `rate` nor `at_once` is given.
    """
    if rate is None and at_once is None:
        raise BadOption("give a rate, a number of calls at once, or both")
    if rate is None and burst is not None:
        raise BadOption(f"burst {burst} needs a rate")
    parts = [_NONE, _NONE, _NONE]
    if rate is not None:
        amount, seconds = parse_rate(rate)
        most = max(1, amount // seconds) if burst is None else burst
        if check_cost(most, "burst") == 0:
            raise BadOption("burst 0 would let no call start: give at least 1")
        parts = [str(amount), str(seconds * 1000), str(most)]
    return " ".join([*parts, _NONE if at_once is None else str(check_cost(at_once, "at_once"))])


@dataclass(frozen=True, slots=True)
class Bucket:
    """The leaky bucket of a rate, as the server stores it. Calls raise its level by their cost, and the level falls with time.

    Attributes:
        level: The level at the time `at`, in tokens.
        at: The time of the level, in Unix ms.
        resumes: The time in Unix ms until which no call starts because of a back-off.
        ahead: The cost of all calls that wait, in tokens.
    """

    level: float = 0.0
    at: float = 0.0
    resumes: float = 0.0
    ahead: float = 0.0


def estimate_wait(stored: str, bucket: Bucket, now: float) -> float:
    """Return the seconds until a call that costs 1 and asks now may start. `time_left` in acquire.lua computes the same.

    Args:
        stored: The rate in its stored form.
        bucket: The bucket of the rate.
        now: The present time in Unix ms.
    """
    amount, per, burst = stored.split(" ")[:3]
    left = max(0.0, bucket.resumes - now)
    if amount != _NONE:
        speed = int(amount) / int(per)
        level = max(0.0, bucket.level - max(0.0, now - bucket.at) * speed)
        left = max(left, (level + bucket.ahead + 1 - int(burst)) / speed)
    return left / 1000


def describe_rate(rate: RateLimit) -> str:
    """Return a rate as a phrase, such as `90000/min, burst 1,500, 20 calls at once`."""
    words = [] if rate.rate is None else [rate.rate, f"burst {rate.burst:,}"]
    if rate.at_once is not None:
        words.append("1 call at once" if rate.at_once == 1 else f"{rate.at_once:,} calls at once")
    return ", ".join(words)


def decode_rate(name: str, stored: str) -> RateLimit | None:
    """Return the rate with this name from the form that `encode_rate` returns; None if it can't be read."""
    parts = stored.split(" ")
    if len(parts) != 4 or any(part != _NONE and not part.isdigit() for part in parts):
        return None
    amount, per, burst, at_once = (None if part == _NONE else int(part) for part in parts)
    rate = None
    if amount is not None and per:
        unit = UNIT_NAMES.get(per // 1000)
        rate = f"{amount}/{unit}" if unit else f"{amount} in {per / 1000:g} s"
    return RateLimit(name, rate, burst, at_once)
