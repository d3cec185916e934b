"""The judge's rules about signals. Pure code without I/O.

A send without an answer may have stored its signal, or may store it later. An acknowledged signal must be received.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from tests.faults.judge.evidence import Evidence
from tests.faults.judge.history import Operation


class Received(NamedTuple):
    """A signal as a worker received it."""

    topic: str
    number: int
    payload: str


def signals_stored_once(see: Evidence) -> Iterator[str]:
    """A key stores one signal, and a number of a topic names one signal, whoever receives it."""
    stored: dict[tuple[str, str], set[str]] = defaultdict(set)
    for op in see.history.of("send"):
        if op.word == "sent" and op.given.get("key"):
            stored[op.id, str(op.given["key"])].add(str(op.given["operation"]))
    for (id, key), operations in stored.items():
        if len(operations) > 1:
            yield f"run {id}: the signal with the key {key} was stored {len(operations)} times"
    named: dict[tuple[str, str, int], set[str]] = defaultdict(set)
    for op, signal in _received(see):
        named[op.id, signal.topic, signal.number].add(signal.payload)
    for (id, topic, number), payloads in named.items():
        if len(payloads) > 1:
            yield f"run {id}: signal {number} of {topic} was received as {sorted(payloads)}"


def signals_received_in_order(see: Evidence) -> Iterator[str]:
    """An owner receives the signals of a topic one after the other. Only a look that was repeated gets the same one again."""
    last: dict[tuple[str, str, str], int] = {}
    for op, signal in _received(see):
        before = last.get((op.id, op.token, signal.topic))
        if before is not None and signal.number not in (before, before + 1):
            yield f"run {op.id}: {op.token} received signal {signal.number} of {signal.topic} after {before}"
        last[op.id, op.token, signal.topic] = signal.number


def signals_kept(see: Evidence) -> Iterator[str]:
    """A completed run that waits for all its answers has received every acknowledged one."""
    found: dict[str, set[str]] = defaultdict(set)
    for op, signal in _received(see):
        if signal.topic == "answer":
            found[op.id].add(signal.payload)
    for op in see.history.of("send"):
        run = see.final.runs.get(op.id)
        if run is None or run.status != "completed" or op.word != "sent" or op.given.get("topic") != "answer":
            continue
        # The reply to a receive may be lost together with its worker. The transcript then shows what was received.
        if str(op.given["payload"]) not in found[op.id] and not any(
            other.outcome == "unknown" for other in see.history.of("receive") if other.id == op.id
        ):
            yield f"run {op.id} completed without the signal {op.given['payload']}, which was acknowledged"


def answers_in_order(see: Evidence) -> Iterator[str]:
    """A handler gets its answers as they were sent, each under its number."""
    for event in see.events:
        if event.what == "disordered":
            yield f"run {event.run} received another answer as number {event.number} under {event.token}"


def _received(see: Evidence) -> Iterator[tuple[Operation, Received]]:
    for op in see.history.of("receive"):
        if op.word == "signal" and op.id not in see.excused:
            topic, number, payload = op.answer[3:]
            yield op, Received(str(topic), int(number), str(payload))
