"""The table of phases: snapshots stay as they were, and the difference of two cuts costs only what has changed."""

import random

import pytest

from coordinator.encoding.checkpoint_head import NO_CHECKPOINT
from workers.attempt.deltas import Deltas
from workers.handlers.checkpoint.draft import Cut, Draft
from workers.handlers.checkpoint.phase_table import SHORTEST_LOG, PhaseSnapshot, PhaseTable

pytestmark = pytest.mark.unit


def changed(table: dict[str, bytes], chance: random.Random) -> None:
    """Make a random change of a table."""
    field = f"phase:-:{chance.randrange(30)}#0"
    if chance.random() < 0.4:
        table.pop(field, None)
    else:
        table[field] = bytes(chance.randrange(9))


@pytest.mark.parametrize("seed", range(20))
def test_snapshots_stay_as_they_were_whatever_changes_later(seed: int):
    chance, table = random.Random(seed), PhaseTable()
    taken: list[tuple[PhaseSnapshot, dict[str, bytes]]] = []
    for _ in range(SHORTEST_LOG * 3):
        changed(table, chance)
        if chance.random() < 0.05:
            taken.append((table.snapshot(), dict(table)))
    assert all(snapshot == expected for snapshot, expected in taken)
    assert table.size == sum(map(len, table.values()))


@pytest.mark.parametrize("seed", range(20))
def test_saves_carry_what_a_comparison_of_whole_cuts_would_carry(seed: int):
    chance, draft = random.Random(seed), Draft()
    deltas = Deltas(NO_CHECKPOINT, 1, draft.cut())
    saved, sent, whole = set[str](), set[str](), True
    for _ in range(SHORTEST_LOG):
        for _ in range(chance.randrange(4)):
            changed(draft.phases, chance)
        cut = draft.cut()
        if chance.random() < 0.1:  # the saver drops a wait that timed out, and such a cut has a plain dict
            cut = cut._replace(phases=dict(cut.phases))
        now = set(cut.phases)
        assert deltas.progress_in(cut) == bool(now - saved)
        delta = deltas.of(cut)
        assert set(delta.phases) == {(name, cut.phases[name]) for name in (now if whole else now - saved)}
        assert set(delta.drop) == (saved | sent) - now
        sent |= now
        if chance.random() < 0.5:  # otherwise the save or its answer is lost
            deltas.acknowledged(cut, delta)
            saved, sent, whole = now, set(), False


def test_a_cut_after_thousands_of_phases_is_compared_by_its_changes_alone():
    draft = Draft()
    deltas = Deltas(NO_CHECKPOINT, 1, draft.cut())
    cut: Cut | None = None
    for number in range(3000):
        draft.end_phase(draft.begin_phase(f"step {number}"), b"output")
        cut = draft.cut()
        delta = deltas.of(cut)
        deltas.acknowledged(cut, delta)
        assert len(delta.phases) == 1
    assert cut is not None
    assert "_all" not in vars(cut.phases)  # no copy of all outputs was made
    assert len(cut.phases) == 3000


def test_the_log_of_a_loop_that_drops_its_phases_stays_short():
    draft = Draft()
    for turn in range(5000):
        draft.begin_turn(turn)
        draft.end_phase(draft.begin_phase("search"), b"output")
        draft.cut()
        draft.end_turn(turn)
    assert isinstance(draft.phases, PhaseTable)
    assert len(draft.phases._log) <= SHORTEST_LOG + 2


def test_a_table_is_changed_like_a_dict():
    table = PhaseTable({"a": b"1"})
    table |= {"b": b"22"}
    table.update(c=b"333")
    assert (table, table.size) == ({"a": b"1", "b": b"22", "c": b"333"}, 6)
    with pytest.raises(KeyError):
        table.pop("missing")
    table.clear()
    assert (table.size, dict(table.snapshot())) == (0, {})
