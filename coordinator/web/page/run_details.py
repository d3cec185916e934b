"""Plans that read everything about one run: its checkpoint, its transcript in pages, and its children."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from coordinator.client.operations.open_namespace import OpenNamespace, reading
from coordinator.encoding.checkpoint_head import CheckpointHead
from coordinator.encoding.codec import decode
from coordinator.encoding.netstrings import split_netstrings
from coordinator.errors import CoordinatorError, Unreadable
from coordinator.feed.events import LOOK_FIELDS, read_look
from coordinator.model.policies.budget import Amount, spending
from coordinator.model.run_id import partition_of
from coordinator.store.keys import Keys, Namespace
from coordinator.store.plans.merge import Plan
from coordinator.store.replies import pairs, require_all, text
from coordinator.store.script import Request, read
from coordinator.views.json_data import to_json_data
from coordinator.views.run_view import phase_label
from coordinator.web.page.shorten import has_long_text, shorten

MOST_MESSAGES = 100  # of one page
MOST_CHILDREN = 200
LARGEST_CHECKPOINT = 4 * 2**20  # bytes; of a larger one the page shows no state and no phases

Steps = Generator[list[Request], Any, Any]


def read_checkpoint(namespace: OpenNamespace, id: str) -> Plan[dict[str, Any]]:
    """Return the state, the phases with their outputs, and the result of a run, with long texts and lists cut.

    `granted` is the amount that was granted to the run in addition to its budget. `output` is True if the run has emitted events.
    """
    keys = yield from namespace.keys(id)
    found: dict[str, Any] = yield from reading(_checkpoint(keys, id))
    return found


def _checkpoint(keys: Keys, id: str) -> Steps:
    fields, result, emitted = require_all(
        (
            yield [
                read(keys.at, "HGETALL", keys.ckpt(id)),
                read(keys.at, "HGET", keys.run(id), "result"),
                read(keys.at, "XRANGE", keys.output(id), "-", "+", "COUNT", 1),
            ]
        )
    )
    stored = pairs(fields)
    size = sum(len(value) for value in stored.values())
    answer: dict[str, Any] = {"size": size, "state": None, "phases": [], "unfinished": []}
    answer |= {"output": bool(emitted), "granted": _granted(stored.get("more", b""))}
    answer["result"] = _shown(result, "result") if result else None
    if size > LARGEST_CHECKPOINT:
        return answer
    answer["state"] = _shown(stored["state"], "state") if stored.get("state") else None
    answer["unfinished"] = _shown(stored["unfinished"], "messages") if stored.get("unfinished") else []
    answer["phases"] = [
        {"name": phase_label(name), "output": _shown(value, "output")}
        for name, value in stored.items()
        if name.startswith("phase:")
    ]
    return answer


def _granted(more: bytes) -> dict[str, Any] | None:
    """Return the amount that was granted to a run in addition to its budget; None if nothing was granted.

    Args:
        more: The part `more` of the run's checkpoint.
    """
    try:
        parts = split_netstrings(more)
        amounts = dict(zip(parts[::2], parts[1::2], strict=False))
        amount = Amount(*map(int, amounts.get(b"granted", b"").split()))
    except (Unreadable, ValueError, TypeError):
        return None
    return to_json_data(spending(amount)) if any(amount) else None


def _shown(data: bytes, place: str) -> Any:
    try:
        return shorten(decode(data, place))
    except Unreadable as error:
        return f"unreadable: {error}"


def read_messages(namespace: OpenNamespace, id: str, start: int, most_text: int, count: int) -> Plan[dict[str, Any]]:
    """Return a page of a run's saved transcript, and the number of all messages. `cut` is True for a message with a cut text.

    Args:
        namespace: The namespace of the run.
        id: The run.
        start: The number of the first message, from 0.
        most_text: The number of characters to which each text is cut.
        count: The largest number of messages.
    """
    keys = yield from namespace.keys(id)
    found: dict[str, Any] = yield from reading(_messages(keys, id, start, most_text, count))
    return found


def _messages(keys: Keys, id: str, start: int, most_text: int, count: int) -> Steps:
    (stored,) = require_all((yield [read(keys.at, "HGET", keys.ckpt(id), "head")]))
    if not stored:
        return {"total": 0, "start": 0, "messages": []}
    head = CheckpointHead.parse(stored)
    chunks = keys.messages(id, str(head.generation))
    (names,) = require_all((yield [read(keys.at, "HKEYS", chunks)]))
    firsts = sorted(int(text(name)) for name in names)
    wanted = [
        first
        for first, after in zip(firsts, [*firsts[1:], head.length], strict=True)
        if after > start and first < start + count
    ]
    found: list[Any] = []
    for first in wanted:  # one by one: a chunk may be large
        (data,) = require_all((yield [read(keys.at, "HGET", chunks, str(first))]))
        for number, message in enumerate(decode(data, f"messages[{first}]") if data else (), first):
            if start <= number < start + count:
                shown = shorten(message, most_text)
                found.append({"number": number, "message": shown, "cut": has_long_text(message, most_text)})
    return {"total": head.length, "start": start, "messages": found}


def read_children(namespace: OpenNamespace, id: str) -> Plan[dict[str, Any]]:
    """Return up to 200 children of a run, in all partitions, with their statuses. `more` is True if there are more."""
    yield from namespace.keys(id)
    space = yield from namespace.space()
    found: dict[str, Any] = yield from reading(_children(space, id))
    return found


def _children(space: Namespace, id: str) -> Steps:
    parts = space.everywhere()
    listed = yield [read(keys.at, "SRANDMEMBER", keys.children(id), MOST_CHILDREN + 1) for keys in parts]
    ids = sorted(text(child) for children in require_all(listed) for child in children)
    shown = ids[:MOST_CHILDREN]
    requests: list[Request] = []
    for child in shown:
        keys = space.keys(partition_of(child, space.partitions))
        requests.append(read(keys.at, "HMGET", keys.run(child), *LOOK_FIELDS))
        requests += [read(other.at, "SCARD", other.children(child)) for other in parts]
    replies = (yield requests) if requests else []
    width = 1 + len(parts)
    children = []
    for index, child in enumerate(shown):
        values, *counts = replies[index * width : (index + 1) * width]
        look = None if isinstance(values, CoordinatorError) else read_look(child, values)
        below = sum(count for count in counts if isinstance(count, int))
        if look is not None:
            told = {"kind": look.kind, "status": str(look.status), "attempt": look.attempt}
            children.append({"id": child, **told, "started": look.started, "ended": look.ended, "children": below})
    return {"children": children, "more": len(ids) > MOST_CHILDREN}
