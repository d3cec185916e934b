"""From one schema to the next: what a run left behind is made into what the handler of today reads.

A migration is applied when a run is resumed, before the handler's first line, and its outcome is saved whole with the run's next
save. Until then it may be applied again: it must depend on nothing but what it is given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coordinator.encoding.checkpoint_head import CheckpointHead
from coordinator.encoding.codec import decode
from coordinator.errors import Refused
from workers.handlers.draft import INPUTS, RESULT_LIMIT, Draft
from workers.handlers.handler import Handler
from workers.handlers.messages import Messages, kept


@dataclass
class Left:
    """What a run of an older schema left: change it in place. Phases by name; the second of a name is `name#1`, one of a turn
    `phase:<turn>:<name>#<k>`."""

    inputs: dict[str, Any]
    state: dict[str, Any]
    messages: list[Any]
    phases: dict[str, Any]
    iteration: int


def migrated(draft: Draft, head: CheckpointHead, inputs: dict[str, Any], handler: Handler[..., Any]) -> Draft:
    """The draft at the handler's schema. Where a step is missing the run should not have come here: refused."""
    left = Left(
        dict(inputs),
        draft.state,
        draft.messages.copy(),
        {shown(field): decode(data, field) for field, data in draft.phases.items() if field != INPUTS},
        draft.iteration,
    )
    for schema in range(head.schema, handler.schema):
        if schema not in handler.migrations:
            raise Refused(f"{handler.kind!r} has no migration from schema {schema}")
        handler.migrations[schema](left)
    _check(left, handler)
    messages = Messages(generation=draft.messages.generation)
    messages.extend(left.messages)
    fresh = Draft(messages, left.state, left.iteration)
    fresh.phases = {field_of(name): kept(value, f"phase {name}", RESULT_LIMIT) for name, value in left.phases.items()}
    fresh.phases[INPUTS] = kept(left.inputs, "inputs", RESULT_LIMIT)
    return fresh


def _check(left: Left, handler: Handler[..., Any]) -> None:
    """What a migration made is what a run has. Refused here it is the migration's fault; later nobody would know whose."""
    wanted = {"inputs": dict, "state": dict, "messages": list, "phases": dict, "iteration": int}
    for part, kind in wanted.items():
        made = getattr(left, part)
        if not isinstance(made, kind) or isinstance(made, bool):
            raise Refused(f"a migration of {handler.kind!r} left {part} as {type(made).__name__}, not {kind.__name__}")
    if left.iteration < 0:
        raise Refused(f"a migration of {handler.kind!r} left the iteration at {left.iteration}")


def shown(field: str) -> str:
    """A phase as people call it; where that could be taken for another one, its field."""
    name = field.removeprefix("phase:-:")
    short = name.removesuffix("#0")
    return next((call for call in (short, name) if field_of(call) == field), field)


def field_of(name: str) -> str:
    """The field of a phase that people call so."""
    if name.startswith("phase:"):
        return name
    return f"phase:-:{name}" if name.rpartition("#")[2].isdigit() and "#" in name else f"phase:-:{name}#0"
