"""One step at the server, as the laws see it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from coordinator.model.policies.budget import sum_spend
from coordinator.model.run import Counters, Status

Given = tuple[dict[str, str], list[dict[str, str]]]


class Broken(AssertionError):
    """A promise was broken."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A run as it was after a step.

    What it has spent and its place in its group are not compared, because calls about other runs change them too.
    """

    status: Status
    token: str
    counters: Counters
    result: bytes
    error: bytes
    cancel: bool
    head: tuple[int, ...]
    wait: str = ""
    spend: str = field(default="", compare=False)
    admitted: bool = field(default=False, compare=False)  # it has a place in its group
    line_score: int | None = field(
        default=None, compare=False
    )  # its score in the line for a place; None: it is in no line
    held: int = field(default=0, compare=False)  # when it last entered the line with an older score

    @classmethod
    def of(cls, row: list[Any]) -> Seen | None:
        if row[0] is None:
            return None
        texts = [(part or b"").decode(errors="replace") for part in (row[0], row[1], row[2], row[7], row[8])]
        head = tuple(int(part) for part in row[6].split()) if row[6] else ()
        return cls(
            Status(texts[0]),
            texts[1],
            Counters.parse(texts[2]),
            row[3] or b"",
            row[4] or b"",
            bool(row[5]),
            head,
            texts[3],
            texts[4],
            bool(row[9]),
            int(float(row[10])) if row[10] else None,
            int(row[11] or 0),
        )

    @property
    def in_line(self) -> bool:
        """Return True if the run waits for a place in its group."""
        return self.line_score is not None

    @property
    def requests(self) -> int:
        """The requests that the server has counted for the run and its children."""
        return sum_spend(self.spend).requests


Runs = Mapping[str, Seen | None]


@dataclass(frozen=True, slots=True)
class Step:
    """A call of a script: its time in ms, its arguments, its answer, and the runs before and after it."""

    now: int
    call: str
    given: Given
    reply: Any
    before: Runs
    after: Runs

    @property
    def words(self) -> list[str]:
        """The words of the answer: one, or one for each item."""
        return words(self.reply)

    def items(self) -> Iterator[tuple[dict[str, str], list[Any]]]:
        """Return the items of the call with their answers."""
        for item, answer in zip(self.given[1], self.reply, strict=True):
            yield item, answer if isinstance(answer, list) else [answer]


def words(reply: Any) -> list[str]:
    parts = reply if isinstance(reply, list) else [reply]
    if parts and isinstance(parts[0], list):
        parts = [part[0] for part in parts]
    return [part.decode(errors="replace") if isinstance(part, bytes) else "" for part in parts]
