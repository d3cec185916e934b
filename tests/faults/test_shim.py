"""The server whose clock the lab moves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.lab.shim import ShimServer
from tests.servers import Kind

pytestmark = pytest.mark.matrix("the fault lab")


@pytest.mark.parametrize("kind", ["valkey", "redis"])
def test_first_call_after_a_jump_gets_the_new_time(kind: Kind, tmp_path: Path) -> None:
    server = ShimServer(kind, tmp_path, {})
    try:
        for jump in [600, -3600, 60, -60] * 20:
            before = server.admin.time()[0]
            server.ahead += jump
            assert abs(server.admin.time()[0] - before - jump) < 30
    finally:
        server.close()
