"""The output of a run in plain Python: which events are valid, which ones a checkpoint covers, and what readers must have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from coordinator.encoding.codec import encode
from coordinator.model.output import Event, Folder, Gap, Rewind
from coordinator.model.run import Note
from coordinator.store.plans import output as output_plans
from coordinator.store.plans.attempts import Output
from tests.lua.store import Store


@dataclass(frozen=True)
class Said:
    """Events that an owner sends: alone, with a save, or with the end of its attempt.

    Attributes:
        first: The number of the first event.
        base: The number of the last event that the checkpoint covered when the attempt began.
        settled: The number of the last event that the save covers; 0 without a save.
        values: The value of each event.
    """

    first: int
    base: int
    settled: int
    values: tuple[int, ...]

    @property
    def last(self) -> int:
        return self.first + len(self.values) - 1

    def output(self) -> Output:
        return Output(self.first, self.base, self.settled, tuple(map(encode_said, self.values)))

    def wire(self) -> bytes:
        return self.output().wire()


def encode_said(value: int) -> bytes:
    """Return an event as an owner sends it. Every third one is a note, which shares the numbers of the other events."""
    if value % 3 == 0:
        return b"n" + encode([str(value), value, None], "a note")
    return b"e" + encode(value, "an event")


def decode_said(value: Any) -> int:
    """Return the value of an event or a note that a reader has got."""
    said = int(value.text if isinstance(value, Note) else value)
    assert isinstance(value, Note) == (said % 3 == 0), (
        f"{value!r} is a note for its reader, and was none, or the other way round"
    )
    return said


@dataclass
class ModelOutput:
    """The output of a run.

    Attributes:
        exists: Whether the run has emitted, or has had a reader. From then on its end is written.
        values: The value of each valid event, from event 1 on; None if the event is missing.
        writer: The epoch of the attempt whose events are the last ones.
        settled: The number of the last event that a checkpoint covers.
        end: The status with which the output has ended; empty if it has not.
        full: Whether the next write removes the stored events.
        trimmed: Whether stored events were ever removed.
        restarts: How often settled events became void, because the run began from the start again.
    """

    exists: bool = False
    values: list[int | None] = field(default_factory=list)
    writer: int = 0
    settled: int = 0
    end: str = ""
    full: bool = False
    trimmed: bool = False
    restarts: int = 0

    def write(self, epoch: int, said: Said) -> None:
        """Store events of the owner. Events that are stored already stay as they are."""
        self.exists = True
        if epoch != self.writer:
            self._begin(epoch, said.base)
        for number, value in enumerate(said.values, said.first):
            if number > len(self.values):
                self.values += [None] * (number - 1 - len(self.values)) + [value]
        self.values += [None] * (said.settled - len(self.values))
        self.settled = max(self.settled, said.settled)
        if self.full:
            self.values = [None] * len(self.values)
            self.full, self.trimmed = False, True

    def leave(self, epoch: int, covered: int) -> None:
        """Note that an attempt is over. If it has emitted nothing, the events after its checkpoint are of an earlier one."""
        if self.exists and epoch != self.writer and len(self.values) > covered:
            self._begin(epoch, covered)

    def _begin(self, epoch: int, base: int) -> None:
        self.writer = epoch
        self.restarts += base < self.settled
        self.settled = min(self.settled, base)
        self.values = self.values[:base] + [None] * (base - len(self.values))

    def finish(self, status: str) -> None:
        if self.exists:
            self.end = status
            self.settled = len(self.values) if status == "completed" else self.settled

    def clear(self) -> None:
        """Remove everything with the run."""
        self.values, self.settled, self.end = [], 0, ""


class Reader:
    """A reader that looks now and then, and sometimes comes back with the id of the last item that it has got.

    Attributes:
        text: The value of each event that the reader has; None if the event is missing.
        rewinds: How often the reader had to drop events.
    """

    def __init__(self, store: Store, id: str, settled: bool) -> None:
        self.store, self.id, self.settled = store, id, settled
        self.folder = Folder(None, settled)
        self.after: str | None = None
        self.text: list[Any] = []
        self.rewinds = 0

    def look(self, *, returns: bool) -> None:
        if returns:
            self.folder = Folder(self.after, self.settled)
        self.take(self.store.do(output_plans.read_page(self.store.keys, self.id, self.folder.cursor)))

    def take(self, entries: Any) -> None:
        for item in self.folder.fold(entries):
            self.after = item.id
            match item:
                case Rewind(to=to):
                    assert to < len(self.text), "a rewind drops something"
                    del self.text[to:]
                    self.rewinds += 1
                case Gap(count=count):
                    self.text += [None] * count
                case Event(number=number, value=value):
                    assert number == len(self.text) + 1, "events come in order, each once"
                    self.text.append(decode_said(value))

    def assert_matches(self, output: ModelOutput) -> None:
        """Assert that the reader, which has just looked, has the valid events; or the settled ones, if it waits for them."""
        wanted = output.values[: output.settled] if self.settled else output.values
        who = f"a reader {'of settled events ' if self.settled else ''}of run {self.id}"
        assert len(self.text) <= len(wanted), f"{who} has {self.text}, but only {wanted} are valid"
        told = (
            self.settled or output.end or not output.trimmed
        )  # otherwise the next entry tells that events are missing
        assert len(self.text) == len(wanted) or not told, f"{who} lacks events: {self.text}"
        for has, valid in zip(self.text, wanted, strict=False):
            assert has == valid or (output.trimmed and None in (has, valid)), (
                f"{who} has {self.text} instead of {wanted}"
            )
        assert not output.end or self.folder.ended == output.end, f"{who} does not know its end"
        assert not self.settled or self.rewinds <= output.restarts, f"{who} had to drop settled events"
