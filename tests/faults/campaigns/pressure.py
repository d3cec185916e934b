"""Let the server answer without serving: memory full, BUSY with a script, LOADING, standing still, cutting all connections."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence

import redis

from tests.faults.campaigns.runner import Campaign, run
from tests.faults.lab.lab import Lab, Plan
from tests.servers import DURABLE
from tests.waiting import wait_until


def break_one(lab: Lab) -> str:
    lab.work_on(lab.choose.randint(2, 20))
    fault = lab.choose.choice([memory_full, busy, loading, stands_still, turned_away])
    fault(lab)
    return fault.__name__.replace("_", " ")


def memory_full(lab: Lab) -> None:
    """Fill the memory until the server has refused some saves or enqueues."""
    admin = lab.server.admin
    refused = _errors(lab, "OOM")
    admin.config_set("maxmemory", admin.info("memory")["used_memory"] // 2)
    try:
        wait_until(lambda: _errors(lab, "OOM") > refused + 3, "it has refused some", timeout=60)
    finally:
        admin.config_set("maxmemory", 0)


def _errors(lab: Lab, kind: str) -> int:
    counts = lab.server.admin.info("errorstats").get(f"errorstat_{kind}", {"count": 0})
    return int(counts["count"])


def busy(lab: Lab) -> None:
    """Run a script for longer than a lease, then kill it."""
    admin = lab.server.admin
    with redis.Redis(port=lab.server.port, socket_timeout=60) as other:
        thread = threading.Thread(target=_loops, args=[other])
        thread.start()
        _pass(lab.plan.lease * 1.5)
        admin.script_kill()
        thread.join()


def _loops(client: redis.Redis) -> None:
    with contextlib.suppress(redis.ResponseError):  # The script was killed.
        client.eval("while true do end", 0)


def loading(lab: Lab) -> None:
    """Kill the server and let it load its file slowly. It answers LOADING meanwhile."""
    lab.server.kill()
    lab.server.start()


def stands_still(lab: Lab) -> None:
    """Stop the server for longer than a lease. All calls wait in its sockets."""
    lab.server.pause()
    _pass(lab.plan.lease * 1.5)
    lab.server.resume()


def turned_away(lab: Lab) -> None:
    """Cut every connection repeatedly for the duration of a lease."""
    admin = lab.server.admin
    until = time.monotonic() + lab.plan.lease
    while time.monotonic() < until:
        with contextlib.suppress(redis.RedisError):
            admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        _pass(0.05)


def _pass(seconds: float) -> None:
    """Let time pass: this fault consists of time."""
    until = time.monotonic() + seconds
    passed: Callable[[], bool] = lambda: time.monotonic() > until  # noqa: E731
    wait_until(passed, f"{seconds:g} s have passed", timeout=seconds + 30)


CAMPAIGN = Campaign(
    "pressure",
    break_one,
    Plan(users=1, lease=2.0),
    settings={
        **DURABLE,
        "appendfsync": "everysec",
        "busy-reply-threshold": "100",
        "key-load-delay": "300",
        "loading-process-events-interval-bytes": "1024",
    },
)


def main(arguments: Sequence[str]) -> int:
    return run(CAMPAIGN, arguments, count=20)
