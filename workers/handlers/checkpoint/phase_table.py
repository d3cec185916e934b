"""The outputs of a run's phases, with snapshots whose cost does not grow with the number of phases.

A cut freezes the outputs. A copy of all of them at each cut would make a run of thousands of phases slower with every phase. So
the table keeps a log of its changes, and a snapshot is a position in the log. The difference of two snapshots of the same log
is the part of the log between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

SHORTEST_LOG = 1000  # a log of up to this length is not replaced, however few phases there are


class PhaseTable(dict[str, bytes]):
    """The encoded outputs of phases and waits, by field.

    Args:
        phases: The outputs at the beginning.

    Attributes:
        size: The number of bytes of all outputs.
    """

    def __init__(self, phases: Mapping[str, bytes] | None = None) -> None:
        super().__init__(phases or {})
        self.size = sum(map(len, self.values()))
        self._begin_log()

    def _begin_log(self) -> None:
        self._base, self._log = dict(self), list[tuple[str, bytes | None]]()

    def __setitem__(self, field: str, output: bytes) -> None:
        self.size += len(output) - len(self.get(field, b""))
        super().__setitem__(field, output)
        self._record(field, output)

    def __delitem__(self, field: str) -> None:
        self.size -= len(self[field])
        super().__delitem__(field)
        self._record(field, None)

    def _record(self, field: str, output: bytes | None) -> None:
        if len(self._log) > SHORTEST_LOG + 2 * len(self):
            self._begin_log()  # earlier snapshots keep the old log
        else:
            self._log.append((field, output))

    def pop(self, field: str, *default: Any) -> Any:
        """Remove an output, and return it. Return the default if there is none."""
        if field not in self and default:
            return default[0]
        output = self[field]
        del self[field]
        return output

    def update(self, *others: Any, **more: bytes) -> None:
        """Set several outputs."""
        for field, output in dict(*others, **more).items():
            self[field] = output

    def __ior__(self, other: Any) -> PhaseTable:  # type: ignore[override, misc]
        self.update(other)
        return self

    def clear(self) -> None:
        """Remove all outputs."""
        for field in list(self):
            del self[field]

    def snapshot(self) -> PhaseSnapshot:
        """Return the outputs as they are now."""
        return PhaseSnapshot(self._base, self._log, len(self._log))


class PhaseSnapshot(Mapping[str, bytes]):
    """The outputs of phases at a cut.

    Args:
        base: The outputs at the beginning of the log.
        log: The changes since then. It grows after the snapshot.
        end: How many of the changes belong to the snapshot.
    """

    def __init__(self, base: dict[str, bytes], log: list[tuple[str, bytes | None]], end: int) -> None:
        self._base, self._log, self._end = base, log, end

    def changes_since(self, earlier: Mapping[str, bytes]) -> dict[str, bytes | None] | None:
        """Return the outputs that differ from an earlier snapshot, with None for a removed one.

        Return None if the two snapshots have no common log.
        """
        if not isinstance(earlier, PhaseSnapshot) or earlier._log is not self._log or earlier._end > self._end:
            return None
        return dict(self._log[earlier._end : self._end])

    @cached_property
    def _all(self) -> dict[str, bytes]:
        outputs = dict(self._base)
        for field, output in self._log[: self._end]:
            if output is None:
                outputs.pop(field, None)
            else:
                outputs[field] = output
        return outputs

    def __getitem__(self, field: str) -> bytes:
        return self._all[field]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)
