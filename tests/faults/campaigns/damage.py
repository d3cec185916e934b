"""Write keys of a wrong type, unreadable counters and hostile bytes to the server.

Only the damaged run may be affected, and doctor must repair the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.faults.campaigns.runner import Campaign, run
from tests.faults.lab.lab import Lab
from tests.waiting import wait_until

HOSTILE = (
    b"\xc1",  # not valid msgpack
    b"\xc1\x01not zstd",
    b"\x91" * 3000,  # deep nesting
    b"\xdd\xff\xff\xff\xff",  # a header that announces four billion items
    b"\xc7\x05\x63hello",  # an unknown extension type
    b"\xdb\x00\x00\x00\x08short",
    b"",
)


def break_one(lab: Lab) -> str:
    lab.work_on(lab.choose.randint(1, 15))
    way = lab.choose.choice(WAYS)
    id = lab.choose.choice(wait_until(lambda: _candidates(lab), "there is a run to damage", timeout=60))
    lab.excused.add(id)
    way(lab, lab.server.admin, id)
    return way.__name__.replace("_", " ")


def _candidates(lab: Lab) -> list[str]:
    """Return runs that wait or run."""
    lab.tend()
    admin: Any = lab.server.admin
    found = list(admin.smembers(lab.keys.live()))
    for key in admin.scan_iter(f"{lab.keys.at}:ready:*"):
        found += admin.zrange(key, 0, 50)
    return sorted({id.decode() for id in found} - lab.excused)


def checkpoint_of_another_type(lab: Lab, admin: Any, id: str) -> None:
    admin.delete(lab.keys.ckpt(id))
    admin.set(lab.keys.ckpt(id), "x")


def messages_of_another_type(lab: Lab, admin: Any, id: str) -> None:
    admin.delete(lab.keys.messages(id, "1"))
    admin.set(lab.keys.messages(id, "1"), "x")


def run_of_another_type(lab: Lab, admin: Any, id: str) -> None:
    admin.delete(lab.keys.run(id))
    admin.rpush(lab.keys.run(id), "x")


def run_gone(lab: Lab, admin: Any, id: str) -> None:
    admin.delete(lab.keys.run(id))


def counters_unreadable(lab: Lab, admin: Any, id: str) -> None:
    admin.hset(lab.keys.run(id), "counters", "seven")


def hostile_spec(lab: Lab, admin: Any, id: str) -> None:
    admin.hset(lab.keys.run(id), "spec", lab.choose.choice(HOSTILE))


def hostile_head(lab: Lab, admin: Any, id: str) -> None:
    admin.hset(lab.keys.ckpt(id), "head", lab.choose.choice(HOSTILE))


def hostile_state(lab: Lab, admin: Any, id: str) -> None:
    admin.hset(lab.keys.ckpt(id), "state", lab.choose.choice(HOSTILE))


def hostile_messages(lab: Lab, admin: Any, id: str) -> None:
    admin.hset(lab.keys.messages(id, "1"), "0", lab.choose.choice(HOSTILE))


WAYS: tuple[Callable[[Lab, Any, str], None], ...] = (
    checkpoint_of_another_type, messages_of_another_type, run_of_another_type, run_gone, counters_unreadable, hostile_spec,
    hostile_head, hostile_state, hostile_messages,
)  # fmt: skip


def repair_all(lab: Lab) -> None:
    """Run doctor until nothing is wrong, as an operator would. Runs in progress may reveal further damage."""
    wait_until(lambda: _doctor(lab), "doctor to have repaired everything", timeout=120)


def _doctor(lab: Lab) -> bool:
    lab.tend()
    return (
        lab._start("coordinator", "doctor", "--repair").wait(60) == 0
        and lab._start("coordinator", "doctor").wait(60) == 0
    )


CAMPAIGN = Campaign("damage", break_one, finish=repair_all)


def main(arguments: Sequence[str]) -> int:
    return run(CAMPAIGN, arguments, count=30)
