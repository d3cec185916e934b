"""The tests that the OpenAI Agents SDK has for sessions, run against `RunSession` and `RedisSession`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.upstream.sdists import run_tests, unpacked_sdist
from tests.servers import Server

pytestmark = pytest.mark.matrix("downloads the sdist of another project")

# What only SQLite has: connections, locks and damaged rows; and a constructor that takes settings as a dict.
OF_SQLITE = [
    "corrupt", "sql_injection", "connection", "lock", "rolls_back", "commit", "closed", "mutation", "retired", "reaps",
    "dictionary",
]  # fmt: skip

# What only the SDK's RedisSession has: its client and pool of redis-py, transactions with WATCH, names and types of its keys, the
# refusal of a Cluster, TTLs of more than 30 years, settings as a dict, and damaged items, which it skips. Ours raises Unreadable.
OF_REDIS_PY = [
    "cluster", "colliding", "rechecks", "layout", "next_id", "created_at", "metadata", "corrupt", "ping_connection", "close_method",
    "cleanup", "noop", "waiting_behind", "cancel", "pool", "post_commit", "watch", "exec", "release", "reconnect", "sibling",
    "ttl_in_the_write", "unrepresentable", "absolute_expiration", "atomic", "retains_overridden", "dictionary",
]  # fmt: skip


@pytest.mark.timeout(900)
def test_the_session_tests_of_the_sdk_pass_on_runs(tmp_path: Path) -> None:
    source = unpacked_sdist("openai-agents", tmp_path)
    passed = run_tests(source, "sessions_on_runs", ["tests/memory/test_session.py"], OF_SQLITE)
    assert passed >= 30, "most tests of sessions are about every session"


@pytest.mark.timeout(900)
def test_the_redis_session_tests_of_the_sdk_pass_on_a_real_server(tmp_path: Path, real_server: Server) -> None:
    source = unpacked_sdist("openai-agents", tmp_path)
    tests = ["tests/extensions/memory/test_redis_session.py"]
    passed = run_tests(source, "sessions_on_redis", tests, OF_REDIS_PY, RUNS_URL=real_server.url)
    assert passed >= 25, "most tests of what a session does are about every session"
