"""A worker process always ends, and calls its exit functions before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

LEFT_BEHIND = """
import asyncio
from workers.program.process_exit import exit_process
from workers.program.registries import fast_runner

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


EXIT_FUNCTIONS = """
import atexit, sys, threading, time
from workers.program.process_exit import exit_process

def hang():
    time.sleep(600)

atexit.register(print, "first")
if "hang" in sys.argv:
    atexit.register(hang)
atexit.register(lambda: print(threading.current_thread() is threading.main_thread()))
atexit.register(lambda: 1 / 0)
atexit.register(sys.exit, 9)
threading.Thread(target=time.sleep, args=[600]).start()
exit_process(3, seconds=0.2)
"""


def test_exit_functions_are_called_in_the_main_thread_even_if_some_raise_errors():
    process = subprocess.run([sys.executable, "-c", EXIT_FUNCTIONS], capture_output=True, text=True, timeout=60)
    assert (process.returncode, process.stdout) == (3, "True\nfirst\n")
    assert "ZeroDivisionError" in process.stderr


def test_exit_function_that_hangs_is_named_and_does_not_change_the_exit_code():
    process = subprocess.run([sys.executable, "-c", EXIT_FUNCTIONS, "hang"], capture_output=True, text=True, timeout=60)
    assert process.returncode == 3
    assert "exit functions, which had time for 0.2 s: hang has not returned (<string>, line 6)" in process.stderr


CHILD_PROCESS = """
import multiprocessing, time
from workers.program.process_exit import exit_process
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
child.start()
print(child.pid, flush=True)
exit_process(3, 300.0)
"""


def test_exit_does_not_wait_for_child_processes():
    process = subprocess.Popen([sys.executable, "-c", CHILD_PROCESS], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        assert process.wait(60) == 3
    finally:
        os.kill(child, signal.SIGKILL)
        process.kill()
        process.wait()
        process.stdout.close()
