"""python -m scripts.demo_: the demo, after its set-up. Exit 0: nothing was lost; 1: something was; 130: it was stopped."""

from __future__ import annotations

import os
import signal

for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(_number, lambda number, _: os._exit(128 + number))  # nothing runs yet: no traceback out of an import

import sys  # noqa: E402

from scripts.demo_.demo import main  # noqa: E402

sys.exit(main())
