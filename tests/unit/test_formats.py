"""The stored formats must never change: servers keep them, and old and new processes share a server.

Python and Lua both follow the declarations in coordinator/store/formats.py. Without these tests, nothing would notice a
changed order.
"""

from __future__ import annotations

from coordinator.model import limits
from coordinator.model.run import ENDED, Status
from coordinator.store import formats
from coordinator.store.generated_lua import CONSTANTS, expand


def test_order_of_stored_numbers_never_changes() -> None:
    assert formats.COUNTERS == (
        "life", "attempt", "epoch", "releases", "recoveries", "strikes", "failures", "backoffs", "struck", "failed",
        "score", "created",
    )  # fmt: skip
    assert formats.HEAD == (
        "seq", "generation", "length", "iteration", "peak", "progress", "schema", "updated", "appended", "size",
    )  # fmt: skip
    assert formats.SPENT == ("used", "idle", "progress", "extensions", "extended")
    assert formats.ATTEMPT == ("life", "attempt", "started", "ended", "saved", "iteration", "messages", "phases")


def test_order_of_the_fields_of_a_delta_never_changes() -> None:
    assert formats.DELTA == (
        "seq", "acked", "generation", "base", "count", "chunk", "iteration", "schema", "state_mode", "state", "phases", "drop",
        "note", "unfinished",
    )  # fmt: skip


def test_stored_words_never_change() -> None:
    assert [str(status) for status in Status] == [
        "queued", "delayed", "running", "waiting", "completed", "failed", "cancelled", "dead",
    ]  # fmt: skip
    assert CONSTANTS["ENDED_STATUSES"] == "{ 'completed', 'failed', 'cancelled', 'dead' }"
    assert set(limits.RETENTION_MS) == set(ENDED)


def test_new_run_has_its_original_counters() -> None:
    assert expand("initial_counters(score, created)") == "('1 0 0 0 0 0 0 0 0 0 ' .. score .. ' ' .. created)"
    assert CONSTANTS["PRIORITY_STEP"] == "8796093022208"
