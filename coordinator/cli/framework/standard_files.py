"""Open standard input, output and error, because a service manager or a script may start a command without them."""

from __future__ import annotations

import os
import sys


def open_standard_files() -> None:
    """Open /dev/null in place of each standard file that is closed.

    Otherwise the next socket or lock file gets the number of a standard file: output would be written to a server's connection, and
    a child process would lose the file that it is given.
    """
    for number in range(3):
        if not _is_open(number):
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
            os.set_inheritable(opened, True)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  # open until the process ends, as Python's own
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
