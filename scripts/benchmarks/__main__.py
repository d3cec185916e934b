"""Run one benchmark: `python scripts/benchmarks NAME [options]`. NAME is a module or a package of this folder."""

from __future__ import annotations

import runpy
import sys

_, name, *arguments = sys.argv
sys.argv = [f"scripts/bench {name}", *arguments]
runpy.run_module(name, run_name="__main__")
