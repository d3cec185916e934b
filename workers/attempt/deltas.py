"""Compute what a save has to send: the changes between the stored checkpoint and the newest cut."""

from __future__ import annotations

from coordinator.encoding.checkpoint_head import CheckpointHead
from coordinator.store.plans.attempts import Delta
from workers.handlers.checkpoint.draft import Cut
from workers.handlers.checkpoint.messages import chunk
from workers.handlers.checkpoint.phase_table import PhaseSnapshot


class Deltas:
    """Compute the changes between the stored checkpoint and a cut, without I/O.

    Args:
        head: The head of the stored checkpoint.
        schema: The schema of the handler.
        start: The cut with which the attempt begins.
    """

    def __init__(self, head: CheckpointHead, schema: int, start: Cut) -> None:
        self._schema = schema
        self._seq = self._acked = head.seq
        self._base, self._generation, self._shift = head.length, head.generation, 0
        self._state, self._bookkeeping, self._unsure = start.state, start.bookkeeping, False
        self._saved_phases, self._names = start.phases, set(start.phases)
        self._sent_names: set[str] = set()
        self._peak = head.peak

    def progress_in(self, cut: Cut) -> bool:
        """Return True if the server will count a cut as progress since the last acknowledged save."""
        if cut.iteration > self._peak or self._new_phases(cut) or cut.state != self._state:
            return True
        return cut.iteration == 0 and cut.generation + self._shift == self._generation and cut.length > self._base

    def of(self, cut: Cut, note: bytes = b"", unfinished: bytes = b"") -> Delta:
        """Return the changes in a cut. If the server has not acknowledged any save yet, the changes are the whole cut.

        Args:
            cut: The cut.
            note: The encoded note of the handler, if it has changed.
            unfinished: The encoded messages after the cut, for a release.
        """
        self._seq += 1
        whole = self._acked == 0
        generation = cut.generation + self._shift
        base = 0 if whole or generation != self._generation else self._base
        packed = cut.packed[base : cut.length]
        state = cut.state if whole or self._unsure or cut.state != self._state else None
        more = (
            cut.bookkeeping
            if (whole and cut.bookkeeping) or self._unsure or cut.bookkeeping != self._bookkeeping
            else None
        )
        phases: tuple[tuple[str, bytes], ...] = ()
        drop: tuple[str, ...] = ()
        if whole or self._sent_names or cut.phases is not self._saved_phases:  # usually a run has no phases
            phases = tuple(cut.phases.items()) if whole else self._new_phases(cut)
            drop = self._dropped_phases(cut)
            self._sent_names.update(name for name, _ in phases)
        # Until the server answers, the sent state may be stored or not.
        self._unsure = True
        return Delta(
            self._seq, self._acked, generation, base, len(packed), chunk(packed) if packed else b"", cut.iteration, self._schema,
            state, phases, drop, note, unfinished, more,
        )  # fmt: skip

    def acknowledged(self, cut: Cut, delta: Delta) -> None:
        """Record that the server has stored the changes of a cut."""
        self._acked, self._base, self._generation = delta.seq, cut.length, delta.generation
        self._state, self._bookkeeping, self._unsure = cut.state, cut.bookkeeping, False
        if self._sent_names or cut.phases is not self._saved_phases:
            self._learn_names(cut)
        self._peak = max(self._peak, cut.iteration)

    def _changes(self, cut: Cut) -> dict[str, bytes | None] | None:
        """Return the phases that have changed since the last acknowledged save.

        Return None if this is not known without comparing all phases.
        """
        phases = cut.phases
        # `isinstance` with an abstract base class is slow, and this is called three times for each saved turn.
        if type(phases) is PhaseSnapshot:
            return phases.changes_since(self._saved_phases)
        return None

    def _new_phases(self, cut: Cut) -> tuple[tuple[str, bytes], ...]:
        changes = self._changes(cut)
        outputs = cut.phases if changes is None else changes
        return tuple((name, data) for name, data in outputs.items() if data is not None and name not in self._names)

    def _dropped_phases(self, cut: Cut) -> tuple[str, ...]:
        changes = self._changes(cut)
        if changes is None:
            return tuple(name for name in self._names | self._sent_names if name not in cut.phases)
        return tuple(
            name for name, data in changes.items() if data is None and (name in self._names or name in self._sent_names)
        )

    def _learn_names(self, cut: Cut) -> None:
        changes = self._changes(cut)
        if changes is None:
            self._names = set(cut.phases)
        else:
            self._names.difference_update(name for name, data in changes.items() if data is None)
            self._names.update(name for name, data in changes.items() if data is not None)
        self._saved_phases, self._sent_names = cut.phases, set()

    def send_whole_next(self) -> None:
        """Make the next save send the whole checkpoint as a new generation, which replaces the stored one."""
        self._acked = 0
        self._shift += 1
