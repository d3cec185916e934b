"""Migrate a checkpoint from an older schema to the schema of the handler.

A migration is applied when a run is resumed, before the handler's first line. The run's next save stores the result as a whole.
Until then the migration may be applied again, so it must depend only on its argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coordinator.encoding.checkpoint_head import CheckpointHead
from coordinator.encoding.codec import decode
from coordinator.errors import Refused
from workers.handlers.checkpoint.draft import INPUTS, RESULT_LIMIT, Draft
from workers.handlers.checkpoint.messages import Messages, encode_plain
from workers.handlers.handler import Handler


@dataclass
class Left:
    """The checkpoint that an attempt with an older schema has left. A migration changes the checkpoint in place.

    Attributes:
        inputs: The inputs with which the handler is called.
        state: The state of the run.
        messages: The transcript of the run.
        phases: The outputs of completed phases, by name. The second phase of a name is called `name#1`, and a phase inside a
            turn `phase:<turn>:<name>#<number>`.
        iteration: The number of completed turns.
    """

    inputs: dict[str, Any]
    state: dict[str, Any]
    messages: list[Any]
    phases: dict[str, Any]
    iteration: int


def migrated(draft: Draft, head: CheckpointHead, inputs: dict[str, Any], handler: Handler[..., Any]) -> Draft:
    """Return a draft that was migrated to the handler's schema.

    Args:
        draft: The loaded checkpoint.
        head: The head of the loaded checkpoint, with its schema.
        inputs: The inputs of the run.
        handler: The handler with its migrations.

    Raises:
        Refused: If a migration is missing, or has left a value of the wrong type.
    """
    left = Left(
        dict(inputs),
        draft.state,
        draft.messages.copy(),
        {shown(field): decode(data, field) for field, data in draft.phases.items() if field.startswith("phase:")},
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
    fresh.phases = {
        field_of(name): encode_plain(value, f"phase {name}", RESULT_LIMIT) for name, value in left.phases.items()
    }
    # Waits that are over, effects, and the counts of received signals do not belong to the handler's schema.
    fresh.phases |= {field: data for field, data in draft.phases.items() if field.startswith(("wait:", "effect:"))}
    fresh.bookkeeping = draft.bookkeeping
    fresh.phases[INPUTS] = encode_plain(left.inputs, "inputs", RESULT_LIMIT)
    return fresh


def _check(left: Left, handler: Handler[..., Any]) -> None:
    """Check the types of a migrated checkpoint, so that the error can name the migration as the cause.

    Raises:
        Refused: If a part has the wrong type. The message names the part.
    """
    wanted = {"inputs": dict, "state": dict, "messages": list, "phases": dict, "iteration": int}
    for part, kind in wanted.items():
        made = getattr(left, part)
        if not isinstance(made, kind) or isinstance(made, bool):
            raise Refused(f"a migration of {handler.kind!r} left {part} as {type(made).__name__}, not {kind.__name__}")
    if left.iteration < 0:
        raise Refused(f"a migration of {handler.kind!r} left the iteration at {left.iteration}")


def shown(field: str) -> str:
    """Return the name of a phase as a migration sees it, or the stored field of the phase if the name would be ambiguous."""
    name = field.removeprefix("phase:-:")
    short = name.removesuffix("#0")
    return next((call for call in (short, name) if field_of(call) == field), field)


def field_of(name: str) -> str:
    """Return the stored field of a phase, from the name that a migration uses for it."""
    if name.startswith("phase:"):
        return name
    return f"phase:-:{name}" if name.rpartition("#")[2].isdigit() and "#" in name else f"phase:-:{name}#0"
