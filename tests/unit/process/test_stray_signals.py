"""A process that a handler forks does not share the signals of the worker, in whatever thread it is forked."""

from __future__ import annotations

import subprocess
import sys

import pytest

# A worker in small: the wake-up pipe of an event loop, a handler of SIGTERM, and a fork. The child says how it handles signals.
PROGRAM = """
import os, signal, socket, sys, threading
from workers.program.stray_signals import HANDLED, restore_signals_in_forked_processes

ours, theirs = socket.socketpair()
ours.setblocking(False)
theirs.setblocking(False)
signal.set_wakeup_fd(theirs.fileno())
for number in HANDLED:
    signal.signal(number, lambda *_: None)
restore_signals_in_forked_processes()

def fork():
    if child := os.fork():
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return
    assert signal.set_wakeup_fd(-1) == -1, "the child writes into the pipe of the worker"
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, []) & set(HANDLED), "signals are blocked in the child"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(99)

codes = []
if sys.argv[1] == "thread":
    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
else:
    fork()
assert codes == [-signal.SIGTERM], codes
assert signal.set_wakeup_fd(theirs.fileno()) == theirs.fileno(), "the worker has lost its pipe"
assert not signal.pthread_sigmask(signal.SIG_BLOCK, []) & set(HANDLED), "signals are blocked in the worker"
try:
    raise AssertionError(f"the worker got a signal of its child: {ours.recv(1)!r}")
except BlockingIOError:
    pass
"""


@pytest.mark.parametrize("forking", ["thread", "main thread"])
def test_forked_process_has_the_default_signal_handling(forking: str) -> None:
    command = [sys.executable, "-c", PROGRAM, forking]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
