"""A worker process collects garbage less often, unless the program has chosen its own thresholds."""

from __future__ import annotations

import subprocess
import sys

import pytest

from workers.program.registries import THRESHOLDS

CODE = """
import gc
from workers.program.registries import tune_garbage_collector
{before}
tune_garbage_collector()
print(*gc.get_threshold(), gc.get_freeze_count() > 0)
"""


@pytest.mark.parametrize(("before", "thresholds"), [("", THRESHOLDS), ("gc.set_threshold(900, 11, 12)", (900, 11, 12))])
def test_thresholds_of_the_program_stay(before: str, thresholds: tuple[int, int, int]) -> None:
    code = CODE.format(before=before)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second, third, frozen = done.stdout.split()
    # Python 3.14 has no third generation, and answers 0 for it.
    assert ((int(first), int(second)), frozen) == (thresholds[:2], "True")
    assert int(third) in (0, thresholds[2])
