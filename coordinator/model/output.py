"""The output of a run, as its readers see it: events, rewinds and gaps.

Events are numbered from 1 over the life of a run. Each attempt begins after the last event that its checkpoint covers. The number
of this event is the base of the attempt. If an earlier attempt has emitted more events, they are void, and the new attempt uses
their numbers again. A reader that has seen void events gets a `Rewind`. A reader that comes later does not see void events.

`Folder` turns the entries of the stream into these items. It does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from coordinator.encoding.codec import decode
from coordinator.errors import BadOption, Unreadable
from coordinator.model import limits
from coordinator.model.run import Note, Status

MOST_UNSETTLED = limits.OUTPUT_EVENTS


@dataclass(frozen=True, slots=True)
class Event:
    """An event that the handler of a run emitted.

    Attributes:
        id: The id of the event. `handle.stream(after=id)` continues after it.
        number: The number of the event, from 1. After a `Rewind`, numbers that were dropped occur again.
        value: The emitted value; a `Note` if the handler called `run.note`.
        at: The time at which the server stored the event.
    """

    id: str
    number: int
    value: Any
    at: datetime


@dataclass(frozen=True, slots=True)
class Rewind:
    """The instruction to drop all events with a number greater than `to`, because the run continues from its checkpoint.

    Attributes:
        id: The id to continue after, as for an event.
        to: The number of the last event that stays valid; 0 to drop all events.
    """

    id: str
    to: int


@dataclass(frozen=True, slots=True)
class Gap:
    """The information that events are missing: the worker or the server had to drop them, because there were too many.

    Attributes:
        id: The id to continue after, as for an event.
        count: The number of missing events.
    """

    id: str
    count: int


Item = Event | Rewind | Gap


class Place(NamedTuple):
    """The id of an entry in an output, as two numbers.

    Attributes:
        epoch: The epoch of the attempt.
        rest: The number of the event, multiplied by OUTPUT_PLACES. Entries that follow the event have higher numbers.
    """

    epoch: int
    rest: int

    @property
    def position(self) -> int:
        """The number of the event that this entry stores. If it stores no event, the number of the last event before it."""
        return self.rest // limits.OUTPUT_PLACES

    def __str__(self) -> str:
        return f"{self.epoch}-{self.rest}"

    @classmethod
    def parse(cls, id: str) -> Place:
        """Return the id of an entry from its text.

        Raises:
            BadOption: The text is not the id of an event.
        """
        epoch, _, rest = str(id).partition("-")
        if not all(part.isascii() and part.isdigit() and len(part) < 20 for part in (epoch, rest)):
            raise BadOption(f"after={id!r:.80} is not the id of an event, such as '1763390000000-16'")
        return cls(int(epoch), int(rest))


def place_of(epoch: int, number: int) -> str:
    """Return the id of the entry that stores the event with this number, of the attempt with this epoch."""
    return str(Place(epoch, number * limits.OUTPUT_PLACES))


class Folder:
    """A converter of the entries of a stream into the items that a reader gets.

    Args:
        after: The id after which the reader continues; None to begin with the first event.
        settled: Deliver an event only when a checkpoint covers it.

    Attributes:
        ended: The status with which the output has ended, or None.
    """

    def __init__(self, after: str | None = None, settled: bool = False) -> None:
        start = Place(0, 0) if after is None else Place.parse(after)
        self._cursor = start
        self.ended: str | None = None
        self._settled = settled
        self._epoch, self._position = start.epoch, start.position  # of the last item that was delivered or is in `_out`
        self._held: list[Event | Gap] = []  # items that no checkpoint covers yet
        self._out: list[Item] = []
        self._before = start.position  # the number of the last event that the reader has
        self._reached = start.position  # the number of the last event that was read, held ones included

    @property
    def cursor(self) -> str:
        """The id after which the next entries are read."""
        return str(self._cursor)

    def fold(self, entries: Iterable[tuple[bytes, list[bytes]]]) -> list[Item]:
        """Return the items for the next entries of the stream. Entries up to the cursor are skipped.

        Events that a later entry makes void are left out.

        Raises:
            Unreadable: If an entry can't be read.
        """
        entries = list(entries)
        self._before, self._out = self._position, []
        if self._may_miss_rewinds(entries):
            self._drop_all(int(entries[0][0].partition(b"-")[0]))
        for id, fields in entries:
            try:
                epoch, _, rest = id.partition(b"-")
                place = Place(int(epoch), int(rest))
                if place > self._cursor:
                    self._cursor = place
                    self._take(place, fields[0], fields[1])
            except (ValueError, IndexError, TypeError) as error:
                raise Unreadable(f"event {id.decode(errors='replace')} can't be read: {error}") from error
        out, self._out = self._out, []
        return out

    def _may_miss_rewinds(self, entries: list[tuple[bytes, list[bytes]]]) -> bool:
        """Return True if the server may have removed a rewind that this reader needs.

        The server keeps OUTPUT_REWINDS rewinds of removed events. If it has removed more rewinds, its oldest entries are rewinds
        only. A reader with `settled` needs no check: settled events become void only if the run starts again from the beginning,
        and the server always keeps that rewind.
        """
        if self._settled or self._position == 0 or len(entries) < limits.OUTPUT_REWINDS - 1:
            return False
        # A trimmed output also keeps one settled position, which may stand between the rewinds.
        oldest = [fields[0][:1] for _, fields in entries if fields[0][:1] != b"s"][: limits.OUTPUT_REWINDS - 1]
        return len(oldest) == limits.OUTPUT_REWINDS - 1 and all(name == b"r" for name in oldest)

    def _drop_all(self, epoch: int) -> None:
        """Deliver a rewind to 0, so that the reader drops all its events. The next event is preceded by a gap."""
        self._epoch, self._position, self._reached, self._before = epoch, 0, 0, 0
        self._out = [Rewind(place_of(epoch, 0), 0)]

    def _take(self, place: Place, name: bytes, value: bytes) -> None:
        letter, base = name[:1], int(name[1:])
        self._enter(place.epoch, base)
        self.ended = None  # the run was revived
        if letter in (b"e", b"n"):
            self._skip(place.epoch, place.position - 1)
            self._add(_read_event(place, letter, value))
        elif letter == b"s":
            self._skip(place.epoch, place.position)
            self._release(int(value))
        elif letter == b"x":
            self._skip(place.epoch, place.position)
            self.ended = value.decode()
            if self.ended == Status.COMPLETED:
                self._release(place.position)
            self._held = []

    def _enter(self, epoch: int, base: int) -> None:
        """Begin to read another attempt, which continues after the event with the number `base`."""
        if epoch == self._epoch:
            return
        self._epoch = epoch
        if self._reached <= base:
            return
        self._reached = base
        self._held = _cut(self._held, base)
        if self._position <= base:
            return
        self._position = base
        if base < self._before:
            self._out, self._before = [Rewind(place_of(epoch, base), base)], base
        else:
            self._out = _cut(self._out, base)

    def _skip(self, epoch: int, number: int) -> None:
        """Add a gap if events up to this number are missing."""
        if self._reached < number:
            self._add(Gap(place_of(epoch, number), number - self._reached))

    def _add(self, item: Event | Gap) -> None:
        self._reached += item.count if isinstance(item, Gap) else 1
        if not self._settled:
            self._position = self._reached
            _append(self._out, item)
            return
        _append(self._held, item)
        if len(self._held) > MOST_UNSETTLED:  # the server has removed the oldest of them as well
            keep = self._held[MOST_UNSETTLED // 8 :]
            last = self._held[MOST_UNSETTLED // 8 - 1]
            number = Place.parse(last.id).position
            self._held = [Gap(last.id, number - self._position), *keep]

    def _release(self, number: int) -> None:
        """Deliver the held events up to this number, because a checkpoint covers them."""
        if not self._settled:
            return
        count = 0
        while count < len(self._held) and (last := Place.parse(self._held[count].id).position) <= number:
            self._position, count = last, count + 1
        self._out += self._held[:count]
        self._held = self._held[count:]
        if self._held and isinstance(self._held[0], Gap) and self._position < number:
            gap = self._held[0]  # the checkpoint covers a part of the missing events
            covered = number - self._position
            id = place_of(Place.parse(gap.id).epoch, number)
            self._out.append(Gap(id, covered))
            self._held[0] = Gap(gap.id, gap.count - covered)
            self._position = number


def _append(items: list[Any], item: Event | Gap) -> None:
    """Append an item to the list. Two gaps in succession become one gap."""
    if isinstance(item, Gap) and items and isinstance(items[-1], Gap):
        items[-1] = Gap(item.id, items[-1].count + item.count)
    else:
        items.append(item)


def _cut(items: list[Any], number: int) -> list[Any]:
    """Return the items up to the event with this number. A gap that extends beyond the number is shortened."""
    kept: list[Any] = []
    for item in items:
        place = Place.parse(item.id)
        if place.position <= number:
            kept.append(item)
        elif isinstance(item, Gap) and place.position - item.count < number:
            kept.append(Gap(place_of(place.epoch, number), number - (place.position - item.count)))
    return kept


def _read_event(place: Place, letter: bytes, value: bytes) -> Event:
    ms, _, data = value.partition(b" ")
    decoded = decode(data, f"event {place}")
    shown = Note(*decoded) if letter == b"n" else decoded
    return Event(str(place), place.position, shown, datetime.fromtimestamp(int(ms) / 1000, UTC))
