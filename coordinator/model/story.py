"""The story of a run: how each attempt that did not complete has ended, and what was saved by then. Pure, no I/O.

The scripts append to it (see `tell` in lua/shared/endings.lua) and bound it; a run that completes at its first attempt has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from coordinator.encoding.codec import decode, encode
from coordinator.errors import Unreadable
from coordinator.model.run import Failure, RunView, Told

MESSAGE_MOST = 500  # characters of an error's message that its entry keeps; the last error is also kept whole
# The numbers of an entry, in their stored order. Times are in ms; saved, iteration, messages and phases describe the checkpoint.
ATTEMPT_NUMBERS = ("life", "attempt", "started", "ended", "saved", "iteration", "messages", "phases")
CANCELLED, KILLED = "a cancel was asked for", "it was killed by its critic"  # as lua/shared/endings.lua says it
STATE = "its state"  # where that is all that was saved
FROM_START = "from the start"  # as lua/attempts/retry.lua and lua/runs/revive.lua say it
NOTHING = 0.05  # seconds that are not worth a word
FEW = 4  # attempts in a row that are all told although they ended alike

# how an attempt ended -> in words
WORDS = {
    "released": "handed back by a worker that was stopping",
    "stopped": "its handler stopped while nobody asked it to",
    "retried": "raised, and is tried again",
    "rejected": "could not be started",
    "failed": "raised",
    "recovered": "lost",
    "forced": "ended by force",
    "revived": "revived by an operator",
}


def took(entry: Told) -> float:
    """How long the attempt lasted, in seconds."""
    return (entry.ended - entry.started).total_seconds() if entry.started else 0.0


def lost(entry: Told) -> float:
    """Seconds of work that may have to be done again, at most: what a lost attempt did after its last checkpoint."""
    if entry.how not in ("recovered", "forced") or entry.started is None:
        return 0.0
    return max(0.0, (entry.ended - max(entry.started, entry.saved or entry.started)).total_seconds())


def sentence(entry: Told) -> str:
    """How it ended, in words. What was asked for goes before how the attempt came to its end."""
    if entry.why == KILLED:
        return entry.error.message if entry.error else KILLED
    parts = ["stopped" if entry.why == CANCELLED else WORDS.get(entry.how, entry.how), entry.why]
    if entry.error is not None:
        parts.append(f"{entry.error.type}: {entry.error.message}" if entry.error.type else entry.error.message)
    return ": ".join(part for part in parts if part)


def kept(entry: Told) -> str:
    """What was saved by then and need not be done again, in words; empty where that is nothing."""
    counts = {"turn": entry.iteration, "phase": entry.phases, "message": entry.messages}
    said = ", ".join(f"{number} {what}{'' if number == 1 else 's'}" for what, number in counts.items() if number)
    return said or (STATE if entry.saved else "")


def lines(view: RunView, span: Callable[[float], str]) -> Iterator[str]:
    """What happened to a run, attempt by attempt; nothing where its first attempt is all there was. `span` says a time in words.
    Of many attempts in a row that ended alike the first and the last are told."""
    before: Told | None = None
    if view.story and (untold := view.story[0].attempt - 1) > 0:
        yield f"attempt 1{'' if untold == 1 else f' to {untold}'}: too long ago to be told"
    for alike in _alike(view.story):
        between = range(1, len(alike) - 1) if len(alike) > FEW else range(0)
        for number, entry in enumerate(alike):
            if number not in between:
                yield from _told(entry, before, span)
            elif number == between[0]:
                yield f"attempt {entry.attempt} to {alike[between[-1]].attempt}: the same"
            before = entry
    if view.story and view.started and view.attempt > view.story[-1].attempt:
        yield f"{_clock(view.started)} {_began(_present(view), before, span)}"
        if view.ended_by and view.ended:
            yield f"{_clock(view.ended)} completed after {span((view.ended - view.started).total_seconds())}"
    work, waits = sum(map(lost, view.story)), sum(_waits(view))
    sums = [f"at most {span(work)} of work lost"] if work >= NOTHING else []
    sums += [f"{span(waits)} without an owner"] if waits >= NOTHING else []
    if sums:
        yield f"in all {', '.join(sums)}"


def _alike(entries: Sequence[Told]) -> Iterator[list[Told]]:
    """Attempts in a row that ended in the same way, together; a revival stands alone."""
    alike: list[Told] = []
    for entry in entries:
        if alike and (entry.how == "revived" or _way(entry) != _way(alike[-1])):
            yield alike
            alike = []
        alike.append(entry)
    if alike:
        yield alike


def _way(entry: Told) -> tuple[str, str, str]:
    return entry.how, entry.why, entry.error.type if entry.error else ""


def _told(entry: Told, before: Told | None, span: Callable[[float], str]) -> Iterator[str]:
    if entry.how == "revived":
        yield f"{_clock(entry.ended)} {sentence(entry)}, for life {entry.life}"
        return
    yield f"{_clock(entry.started)} {_began(entry, before, span)}"
    yield f"{_clock(entry.ended)} {_over(entry, span)}"


def _began(entry: Told, before: Told | None, span: Callable[[float], str]) -> str:
    on = f" on worker {entry.worker}" if entry.worker else ""
    code = f" (code {entry.code})" if entry.code and (before is None or entry.code != before.code) else ""
    if before is None or entry.started is None:
        return f"attempt {entry.attempt}{on}{code}"
    waited = (entry.started - before.ended).total_seconds()
    had = "" if before.why == FROM_START else kept(before)
    begins = {"": FROM_START, STATE: f"with {STATE}"}.get(had, f"skipped what was saved: {had}")
    return f"attempt {entry.attempt}{on}{code} after {span(waited)}, {begins}"


def _over(entry: Told, span: Callable[[float], str]) -> str:
    again = f"; at most {span(lost(entry))} of work lost" if lost(entry) >= NOTHING else ""
    return f"{sentence(entry)}, after {span(took(entry))}{again}; saved: {kept(entry) or 'nothing'}"


def _present(view: RunView) -> Told:
    """The attempt that is under way, or completed."""
    return Told(
        "", view.counters.life, view.attempt, view.started, view.ended or view.created, view.checkpointed, 0, 0, 0,
        view.owner or view.ended_by or "", view.code or "", "", None,
    )  # fmt: skip


def _waits(view: RunView) -> Iterator[float]:
    """How long nobody had the run between two attempts, one number for each. A run that has ended waits for nobody: the time until
    it was revived does not count."""
    since: datetime | None = None
    for entry in view.story:
        if entry.how != "revived" and since is not None and entry.started is not None:
            yield max(0.0, (entry.started - since).total_seconds())
        since = entry.ended
    if since is not None and view.started is not None and view.attempt > view.story[-1].attempt:
        yield max(0.0, (view.started - since).total_seconds())


def _clock(moment: datetime | None) -> str:
    return moment.astimezone().strftime("%m-%d %H:%M:%S") if moment else ""


def brief(error: bytes) -> bytes:
    """An encoded error without its traceback, and with the beginning of its message."""
    try:
        type, message, *_ = decode(error, "error")
        return encode([str(type)[:100], str(message)[:MESSAGE_MOST]], "error")
    except (Unreadable, TypeError, ValueError):
        return error[:MESSAGE_MOST]


def told(story: bytes | None) -> tuple[Told, ...]:
    """The entries, oldest first. What can't be read is left out: a story is for people."""
    return tuple(entry for part in _netstrings(story or b"") if (entry := _entry(part)) is not None)


def _entry(part: bytes) -> Told | None:
    fields = list(_netstrings(part))
    if len(fields) != 6:
        return None
    how, numbers, worker, code, why = (field.decode(errors="replace") for field in fields[:5])
    counts = numbers.split()
    if len(counts) != len(ATTEMPT_NUMBERS) or not all(count.isdigit() for count in counts):
        return None
    try:
        life, attempt, started, ended, saved, iteration, messages, phases = map(int, counts)
        return Told(
            how, life, attempt, _moment(started), datetime.fromtimestamp(ended / 1000, UTC), _moment(saved), iteration, messages,
            phases, worker, code, why, _error(fields[5]),
        )  # fmt: skip
    except (ValueError, OverflowError, OSError):  # a number or a time that none of the scripts wrote
        return None


def _moment(ms: int) -> datetime | None:
    return datetime.fromtimestamp(ms / 1000, UTC) if ms else None


def _error(data: bytes) -> Failure | None:
    if not data:
        return None
    try:
        type, message = decode(data, "error")
        return Failure(str(type), str(message))
    except (Unreadable, TypeError, ValueError):
        return Failure("", repr(data[:100]))


def _netstrings(data: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(data):
        length, colon, _ = data[start : start + 12].partition(b":")
        if not colon or not length.isdigit():
            return
        begin = start + len(length) + 1
        yield data[begin : begin + int(length)]
        start = begin + int(length)
