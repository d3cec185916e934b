"""Run the demo: `python -m scripts.demonstration`. Exit code 0: nothing was lost; 1: something was lost; 130: interrupted."""

from __future__ import annotations

import os
import signal

for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    # No other process runs yet, and an interrupted import must not print a traceback.
    signal.signal(_number, lambda number, _: os._exit(128 + number))

import sys  # noqa: E402

from scripts.demonstration.demo import main  # noqa: E402

sys.exit(main())
