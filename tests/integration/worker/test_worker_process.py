"""A worker process always ends."""

from __future__ import annotations

import subprocess
import sys

LEFT_BEHIND = """
import asyncio
from workers.program.registries import exit_process, fast_runner

async def deaf():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

async def main():
    asyncio.get_running_loop().create_task(deaf())
    await asyncio.sleep(0)
    return 3

exit_process(fast_runner()(main()))
"""


def test_handler_that_ignores_every_cancel_does_not_keep_the_process_alive():
    assert subprocess.run([sys.executable, "-c", LEFT_BEHIND], timeout=60).returncode == 3
