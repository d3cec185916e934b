"""Every function that reads bytes from the server, with bytes that our code never wrote: a value or one of our errors."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from coordinator.client.schedules import schedule_view
from coordinator.encoding.checkpoint_head import CheckpointHead
from coordinator.encoding.codec import decode, encode
from coordinator.encoding.spec import read_spec
from coordinator.errors import CoordinatorError
from coordinator.model import story
from coordinator.model.policies.deadline import Deadline, Spent
from coordinator.model.policies.schedule import rules_from
from coordinator.model.run import Status
from coordinator.views.ending import Ending, read_failure
from coordinator.views.run_view import read_note, run_view
from tests.faults.fuzz.hostile import hostile
from workers.attempt.deadlines.deadline_tracker import DeadlineTracker
from workers.durable.records import stored_record
from workers.handlers.checkpoint.draft import loaded

SPEC = encode([{"topic": "tides", "n": 3}, {"caller_id": "u1"}, {"key": "k", "priority": 5}], "spec")
STATE = encode({"turn": 3, "seen": ["a", "b"], "at": (1, 2)}, "state")
CHUNK = encode([{"role": "user", "content": "x"}, {"role": "tool", "content": b"y"}], "chunk")
RULES = encode(["0 2 * * *", 0.0, "UTC", 0.0, "skip", "latest"], "rules")
ERROR, NOTE = encode(["ValueError", "bad", "trace"], "error"), encode(["half", 1, 2.0], "note")
META = encode([{"run_id": "r1"}, None], "meta")
HEAD, COUNTERS, MS = (
    b"3 1 2 1 1 2 1 1700000000000 2 40",
    b"1 1 1700000000000 0 0 0 0 0 0 0 1700000000000 1700000000000",
    b"1700000000000",
)
WAIT = b"1700000000000 1700000009000 s:t:3 s:u:0"
SPENT, NUMBERS = b"1000 20 3 1 500", b"1 2 1700000000000 1700000001000 1700000000500 3 4 1"


def netstrings(*parts: bytes) -> bytes:
    return b"".join(b"%d:%s" % (len(part), part) for part in parts)


TOLD = netstrings(b"recovered", NUMBERS, b"w1", b"v1", b"why", encode(["ValueError", "bad"], "error"))
STORY = netstrings(TOLD, netstrings(b"revived", NUMBERS, b"", b"", b"from the start", b""), TOLD)

Target = Callable[[random.Random], Any]


def maybe(dice: random.Random, valid: bytes) -> bytes:
    """Return mostly valid values, so that an invalid one reaches the code behind the first check."""
    return valid if dice.random() < 0.6 else hostile(dice, valid)


def checkpoint(dice: random.Random) -> Any:
    fields = [(b"head", HEAD), (b"state", STATE), (b"phase:-:p#0", ERROR), (b"unfinished", CHUNK), (b"inputs", STATE)]
    flat = [
        part
        for name, value in fields
        if dice.random() < 0.9
        for part in (maybe(dice, name) if dice.random() < 0.1 else name, maybe(dice, value))
    ]
    return loaded([flat, [maybe(dice, b"0"), maybe(dice, CHUNK)]])


def view(dice: random.Random) -> Any:
    status, cause = dice.choice([b"running", b"waiting"]), dice.choice([b"recover", b"wake signal t"])
    fields = {
        b"spec": SPEC, b"status": status, b"route": b"default:k@1", b"counters": COUNTERS, b"token": b"1-2-w", b"note": NOTE,
        b"error": ERROR, b"cause": cause, b"started": MS, b"ended": MS, b"reason": b"why", b"story": STORY, b"spent": SPENT,
        b"kill": ERROR, b"killed": ERROR, b"wait": WAIT,
    }  # fmt: skip
    flat = [part for name, value in fields.items() if dice.random() < 0.9 for part in (name, maybe(dice, value))]
    child = [b"c1", maybe(dice, b"queued"), maybe(dice, b"default:k@1"), -1, 0, b"", maybe(dice, MS), 0]
    waits = dice.choice([[], [b"2", b"1", b"2", maybe(dice, MS), [child]]])
    seen = run_view(
        "r1",
        [
            flat,
            maybe(dice, HEAD),
            [maybe(dice, b"phase:-:p#0")],
            1,
            1,
            b"",
            maybe(dice, MS),
            1,
            [maybe(dice, b"t"), 1],
            waits,
        ],
    )
    return list(story.describe_story(seen, str))


def entries(dice: random.Random) -> Any:
    """Return a story with valid frames around invalid content, or the reverse."""
    parts = [b"recovered", NUMBERS, b"w1", b"v1", b"why", ERROR]
    entry = netstrings(*(maybe(dice, part) for part in parts))
    return story.read_story(maybe(dice, netstrings(entry, TOLD)))


def spent(dice: random.Random) -> Any:
    """Read `spent` as a worker does for a claimed run, and compute with it as its deadline watch does."""
    found = Spent.parse(hostile(dice, SPENT).decode(errors="replace"))
    return DeadlineTracker(Deadline(soft=1.0, hard=2.0, progress=1.0), found, 0.0)


def ending(dice: random.Random) -> Any:
    status = dice.choice(list(Status)).encode()
    return Ending.of(
        "r1", [maybe(dice, status), maybe(dice, STATE), maybe(dice, ERROR), maybe(dice, b"why"), maybe(dice, MS), b""]
    ).result()


def schedule(dice: random.Random) -> Any:
    fields = {
        "generation": b"g",
        "rules": RULES,
        "route": b"default:k@0",
        "spec": SPEC,
        "next": MS,
        "last": b"r1",
        "fired": b"3",
        "skipped": b"0",
        "why": b"",
    }
    return schedule_view("nightly", {name: maybe(dice, value) for name, value in fields.items() if dice.random() < 0.9})


def record(dice: random.Random) -> Any:
    content = {"head": HEAD, "meta": META, "state": STATE, "phase:0": encode(["p", 1], "phase")}
    content = {name: maybe(dice, value) for name, value in content.items() if dice.random() < 0.95}
    return stored_record.read_record("r1", content, {dice.choice(["0", "0", "0", "2", "x", ""]): maybe(dice, CHUNK)})


TARGETS: dict[str, Target] = {
    "decode": lambda dice: decode(hostile(dice), "fuzz"),
    "spec": lambda dice: read_spec(hostile(dice, SPEC)),
    "head": lambda dice: CheckpointHead.parse(hostile(dice, HEAD)),
    "checkpoint": checkpoint,
    "error": lambda dice: read_failure(hostile(dice, ERROR)),
    "note": lambda dice: read_note(hostile(dice, NOTE)),
    "ending": ending,
    "view": view,
    "story": entries,
    "brief of an error": lambda dice: story.brief(hostile(dice, ERROR)),
    "time spent": spent,
    "rules of a schedule": lambda dice: rules_from(hostile(dice, RULES)),
    "schedule": schedule,
    "record": record,
}


def bad(target: str, seed: int) -> str:
    """Return a description of a result that is neither a value nor one of our errors; an empty string if there is none."""
    try:
        TARGETS[target](random.Random(seed))
    except CoordinatorError:
        return ""
    except Exception as error:  # noqa: BLE001  # Any error is a finding.
        return f"{type(error).__name__}: {error}"
    return ""
