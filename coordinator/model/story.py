"""The story of a run: for each attempt that did not complete, how it ended, and what its last checkpoint held.

The scripts append to the story (see `append_story` in lua/shared/endings.lua) and limit its size. A run that completes at its first
attempt has no story. The functions here read a story and describe it in words. They do no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from coordinator.encoding.codec import decode, encode
from coordinator.errors import Unreadable
from coordinator.model.run import AttemptRecord, Failure, RunView

MESSAGE_MOST = 500  # characters of an error's message in an entry; the run also keeps its last error whole
# The numbers of an entry, in their stored order. Times are in ms; saved, iteration, messages and phases describe the checkpoint.
ATTEMPT_NUMBERS = ("life", "attempt", "started", "ended", "saved", "iteration", "messages", "phases")
CANCELLED, KILLED = "a cancel was asked for", "it was killed by its critic"  # stored by lua/shared/endings.lua
STATE = "its state"  # if nothing else was saved
FROM_START = "from the start"  # stored by lua/attempts/retry.lua and lua/runs/revive.lua
NEGLIGIBLE = 0.05  # seconds that are not mentioned
FEW = 4  # attempts in a row that are all described although they ended alike

# How an attempt ended, in words.
WORDS = {
    "released": "released: its worker was shutting down",
    "stopped": "its handler raised the stop exception without a stop request",
    "retried": "raised and is retried",
    "rejected": "could not be started",
    "failed": "raised",
    "recovered": "lost",
    "forced": "ended by force",
    "revived": "revived by an operator",
}


def duration(entry: AttemptRecord) -> float:
    """Return the duration of the attempt in seconds."""
    return (entry.ended - entry.started).total_seconds() if entry.started else 0.0


def lost_work(entry: AttemptRecord) -> float:
    """Return the time of a lost attempt after its last checkpoint, in seconds: at most this much work is repeated.

    Return 0.0 for an attempt that was not lost.
    """
    if entry.how not in ("recovered", "forced") or entry.started is None:
        return 0.0
    return max(0.0, (entry.ended - max(entry.started, entry.saved or entry.started)).total_seconds())


def describe_end(entry: AttemptRecord) -> str:
    """Return a phrase that says how the attempt ended. A requested cancel or kill takes precedence over the handler's error."""
    if entry.why == KILLED:
        return entry.error.message if entry.error else KILLED
    parts = ["stopped" if entry.why == CANCELLED else WORDS.get(entry.how, entry.how), entry.why]
    if entry.error is not None:
        parts.append(f"{entry.error.type}: {entry.error.message}" if entry.error.type else entry.error.message)
    return ": ".join(part for part in parts if part)


def describe_saved(entry: AttemptRecord) -> str:
    """Return the contents of the last checkpoint at the end of the attempt as a phrase, such as `3 turns, 12 messages`.

    The phrase is empty if nothing was saved.
    """
    counts = {"turn": entry.iteration, "phase": entry.phases, "message": entry.messages}
    said = ", ".join(f"{number} {what}{'' if number == 1 else 's'}" for what, number in counts.items() if number)
    return said or (STATE if entry.saved else "")


def describe_story(view: RunView, span: Callable[[float], str]) -> Iterator[str]:
    """Yield lines that describe what happened to a run, attempt by attempt. A run without a story gets no lines.

    Of many attempts in a row that ended alike, only the first and the last are described.

    Args:
        view: The run.
        span: A function that formats a number of seconds.
    """
    before: AttemptRecord | None = None
    if view.story and (dropped := view.story[0].attempt - 1) > 0:
        yield f"attempt 1{'' if dropped == 1 else f' to {dropped}'}: ended with a wait, or no longer recorded"
    for alike in _group_alike(view.story):
        between = range(1, len(alike) - 1) if len(alike) > FEW else range(0)
        for number, entry in enumerate(alike):
            if number not in between:
                yield from _describe_entry(entry, before, span)
            elif number == between[0]:
                yield f"attempt {entry.attempt} to {alike[between[-1]].attempt}: the same"
            before = entry
    if view.story and view.started and view.attempt > view.story[-1].attempt:
        yield f"{_clock(view.started)} {_describe_start(_current_attempt(view), before, span)}"
        if view.ended_by and view.ended:
            yield f"{_clock(view.ended)} completed after {span((view.ended - view.started).total_seconds())}"
    work, waits = sum(map(lost_work, view.story)), sum(_waiting_times(view))
    sums = [f"at most {span(work)} of work lost"] if work >= NEGLIGIBLE else []
    sums += [f"{span(waits)} without an owner"] if waits >= NEGLIGIBLE else []
    if sums:
        yield f"in total {', '.join(sums)}"


def _group_alike(entries: Sequence[AttemptRecord]) -> Iterator[list[AttemptRecord]]:
    """Yield groups of attempts in a row that ended in the same way. A revival is a group of its own."""
    alike: list[AttemptRecord] = []
    for entry in entries:
        if alike and (entry.how == "revived" or _way(entry) != _way(alike[-1])):
            yield alike
            alike = []
        alike.append(entry)
    if alike:
        yield alike


def _way(entry: AttemptRecord) -> tuple[str, str, str]:
    return entry.how, entry.why, entry.error.type if entry.error else ""


def _describe_entry(entry: AttemptRecord, before: AttemptRecord | None, span: Callable[[float], str]) -> Iterator[str]:
    if entry.how == "revived":
        yield f"{_clock(entry.ended)} {describe_end(entry)}, for life {entry.life}"
        return
    yield f"{_clock(entry.started)} {_describe_start(entry, before, span)}"
    yield f"{_clock(entry.ended)} {_describe_finish(entry, span)}"


def _describe_start(entry: AttemptRecord, before: AttemptRecord | None, span: Callable[[float], str]) -> str:
    on = f" on worker {entry.worker}" if entry.worker else ""
    code = f" (code {entry.code})" if entry.code and (before is None or entry.code != before.code) else ""
    if before is None or entry.started is None:
        return f"attempt {entry.attempt}{on}{code}"
    if entry.attempt > before.attempt + 1:
        return f"attempt {entry.attempt}{on}{code} after {_describe_suspended(before.attempt + 1, entry.attempt - 1)}"
    waited = (entry.started - before.ended).total_seconds()
    had = "" if before.why == FROM_START else describe_saved(before)
    begins = {"": FROM_START, STATE: f"with {STATE}"}.get(had, f"continued after {had}")
    return f"attempt {entry.attempt}{on}{code} after {span(waited)}, {begins}"


def _describe_suspended(first: int, last: int) -> str:
    """Return a phrase for attempts that a wait ended, and that have therefore no entry in the story."""
    return (
        f"attempt {first}, which ended with a wait"
        if first == last
        else f"attempts {first} to {last}, which ended with a wait"
    )


def _describe_finish(entry: AttemptRecord, span: Callable[[float], str]) -> str:
    again = f"; at most {span(lost_work(entry))} of work lost" if lost_work(entry) >= NEGLIGIBLE else ""
    return f"{describe_end(entry)}, after {span(duration(entry))}{again}; saved: {describe_saved(entry) or 'nothing'}"


def _current_attempt(view: RunView) -> AttemptRecord:
    """Return a record of the last attempt of a run, which is running or has completed the run."""
    return AttemptRecord(
        "", view.counters.life, view.attempt, view.started, view.ended or view.created, view.checkpointed, 0, 0, 0,
        view.owner or view.ended_by or "", view.code or "", "", None,
    )  # fmt: skip


def _waiting_times(view: RunView) -> Iterator[float]:
    """Yield the seconds between each attempt and the next, in which the run had no owner.

    Two times are left out: the time before a revival, and the time around attempts that a wait ended, which are not in the story.
    """
    before: AttemptRecord | None = None
    for entry in (*view.story, _current_attempt(view)):
        if entry.how != "revived" and before is not None and entry.started and entry.attempt == before.attempt + 1:
            yield max(0.0, (entry.started - before.ended).total_seconds())
        before = entry


def _clock(moment: datetime | None) -> str:
    return moment.astimezone().strftime("%m-%d %H:%M:%S") if moment else ""


def brief(error: bytes) -> bytes:
    """Return an encoded error without its traceback, and with only the beginning of its message."""
    try:
        type, message, *_ = decode(error, "error")
        return encode([str(type)[:100], str(message)[:MESSAGE_MOST]], "error")
    except (Unreadable, TypeError, ValueError):
        return error[:MESSAGE_MOST]


def read_story(story: bytes | None) -> tuple[AttemptRecord, ...]:
    """Return the entries of a stored story, oldest first. Entries that can't be read are left out: a story is only for display."""
    return tuple(entry for part in _netstrings(story or b"") if (entry := _entry(part)) is not None)


def _entry(part: bytes) -> AttemptRecord | None:
    fields = list(_netstrings(part))
    if len(fields) != 6:
        return None
    how, numbers, worker, code, why = (field.decode(errors="replace") for field in fields[:5])
    counts = numbers.split()
    if len(counts) != len(ATTEMPT_NUMBERS) or not all(count.isdigit() for count in counts):
        return None
    try:
        life, attempt, started, ended, saved, iteration, messages, phases = map(int, counts)
        return AttemptRecord(
            how, life, attempt, _moment(started), datetime.fromtimestamp(ended / 1000, UTC), _moment(saved), iteration, messages,
            phases, worker, code, why, _error(fields[5]),
        )  # fmt: skip
    except (ValueError, OverflowError, OSError):  # a number or a time that no script wrote
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
