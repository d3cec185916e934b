"""Migrations: phases keep their identity, and a result that is not valid is refused."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.encoding.checkpoint_head import CheckpointHead
from coordinator.errors import Refused
from workers import AsyncRun, Left, Registry
from workers.handlers.checkpoint.draft import Draft
from workers.handlers.checkpoint.migration import field_of, migrated, shown


@pytest.mark.parametrize(
    "field",
    [
        "phase:-:outline#0", "phase:-:outline#1", "phase:-:issue#12#0", "phase:-:issue#12#3", "phase:-:issue#0#0",
        "phase:-:phase:x#0", "phase:4:tool#0", "phase:-:#0", "phase:-:##0",
    ],
)  # fmt: skip
def test_phase_that_a_migration_leaves_alone_stays_the_same_phase(field: str) -> None:
    assert field_of(shown(field)) == field


def test_phases_of_any_name_survive_a_migration() -> None:
    runs = Registry()

    @runs.handler(schema=2)
    async def grow(run: AsyncRun) -> None:
        return None

    @grow.migration(1)
    def _(left: Left) -> None:
        left.phases["outline"] = "new"

    draft = Draft()
    draft.phases = {f"phase:-:{name}#0": b"\x01" for name in ("outline", "issue#12", "issue")}
    fresh = migrated(draft, CheckpointHead(schema=1), {}, grow)
    assert set(fresh.phases) == {*draft.phases, "inputs"}


@pytest.mark.parametrize(
    ("part", "value"), [("state", None), ("messages", {}), ("inputs", []), ("phases", []), ("iteration", "1"), ("iteration", -1)]
)  # fmt: skip
def test_migration_with_an_invalid_result_is_refused_and_named(part: str, value: Any) -> None:
    runs = Registry()

    @runs.handler(schema=2)
    async def grow(run: AsyncRun) -> None:
        return None

    @grow.migration(1)
    def _(left: Left) -> None:
        setattr(left, part, value)

    with pytest.raises(Refused, match=f"a migration of 'grow' left (the )?{part}"):
        migrated(Draft(), CheckpointHead(schema=1), {}, grow)
