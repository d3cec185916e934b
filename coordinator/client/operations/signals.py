"""Send a signal to a run, and grant it more than its budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordinator.client.operations.open_namespace import OpenNamespace, new_mark, run_not_found
from coordinator.client.run_builder import check_key
from coordinator.encoding.codec import encode
from coordinator.errors import BadCall, BadOption, Ended, Full, Unreadable
from coordinator.model import limits
from coordinator.model.policies.budget import TOPIC, Amount, check_topic
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans.merge import Plan

WriteSignal = Callable[[str, Any], Any]


def send(
    namespace: OpenNamespace, id: str, topic: str, payload: object, key: str | None, write: WriteSignal | None = None
) -> Plan[bool]:
    """Send a signal to a run. Return False if a signal with the same key was sent to the run before.

    Args:
        namespace: The namespace of the run.
        id: The run.
        topic: The topic of the signal.
        payload: The value that the handler receives.
        key: The idempotency key of the signal, if any.
        write: Converts the payload to plain data for the type that the handler declares for the topic; None to send it as it is.

    Raises:
        BadName: The topic is not a name, or is reserved for grants.
        BadOption: The key is not valid.
        NotPlain: The payload can't be stored.
        TooLarge: The payload is larger than 1 MiB.
        Ended: The run has ended.
        Full: The run has too many signals that it has not received.
        NotFound: The run does not exist.
        Unreadable: The stored signals of the run are damaged.
    """
    check_topic(topic)
    return (yield from _send(namespace, id, topic, payload, key, write))


def _send(
    namespace: OpenNamespace, id: str, topic: str, payload: object, key: str | None, write: WriteSignal | None = None
) -> Plan[bool]:
    once = "" if key is None else check_key(key)
    plain = payload if write is None else write(topic, payload)
    data = encode(plain, f"the payload of signal {topic!r}", limits.SIGNAL_PAYLOAD)
    keys = yield from namespace.keys(id)
    answer, *rest = yield from client_plans.send(keys, id, topic=topic, payload=data, operation=new_mark(), key=once)
    match answer:
        case "sent" | "found":
            return answer == "sent"
        case "ended":
            advice = "" if rest[0] == "completed" else "; revive it first"
            raise Ended(
                f"run {id} has ended as {rest[0]}, so it can't receive signal {topic!r}{advice}", status=rest[0]
            )
        case "full":
            raise Full(
                f"run {id} did not get signal {topic!r}: it has not received its earlier signals, and the limit is "
                f"{limits.SIGNAL_COUNT:,} signals or {limits.SIGNAL_BYTES // 2**20} MiB; send again when it has received some of "
                "them, or waits for this topic"
            )
        case "missing":
            raise run_not_found(id)
        case "unreadable":
            raise Unreadable(
                f"run {id} did not get signal {topic!r}: its stored signals can't be read; 'coordinator doctor' finds a Redis "
                "key that holds a value of another type"
            )
        case _:
            raise BadCall(f"send answered {answer!r}")


def grant(namespace: OpenNamespace, id: str, amount: Amount) -> Plan[None]:
    """Let a run spend more than its budget. The grant is a signal of a reserved topic.

    A failed, dead or cancelled run can use the grant after it is revived.

    Raises:
        BadOption: The amount is 0.
        Ended: The run has completed, or its inputs were not kept.
        Full: The run has 1,000 grants already.
        NotFound: The run does not exist.
    """
    if not any(amount):
        raise BadOption("a grant needs an amount: usd, tokens or requests")
    try:
        yield from _send(namespace, id, TOPIC, [*amount], None)
    except Full:
        raise Full(
            f"run {id} did not get the grant: it has {limits.GRANT_COUNT:,} grants already, which is the limit"
        ) from None
    except Ended as error:
        raise Ended(
            f"run {id} has ended as {error.status} and can't be revived, so nothing can be granted to it",
            status=error.status,
        ) from None
