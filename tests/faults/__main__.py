"""`scripts/faults NAME …`: import the module of that name and call its `main(arguments) -> exit code`.

Every module in tests/faults/campaigns that defines `main` is a command. The other commands are listed in `OTHERS`.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

CAMPAIGNS = Path(__file__).parent / "campaigns"
OTHERS = {
    "fuzz": "tests.faults.fuzz",
    "mutants": "tests.faults.mutants",
    "plant": "tests.faults.simulation.plant",
    "report": "tests.faults.records.report",
    "simulate": "tests.faults.simulation.simulate",
}
_MAIN = re.compile(r"^def main\(arguments", re.M)


def commands() -> dict[str, str]:
    """Return the name and the module of every command."""
    campaigns = [path.stem for path in CAMPAIGNS.glob("*.py") if _MAIN.search(path.read_text())]
    return dict(sorted({**OTHERS, **{name: f"tests.faults.campaigns.{name}" for name in campaigns}}.items()))


def main() -> int:
    known = commands()
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in known:
        code: int = importlib.import_module(known[name]).main(sys.argv[2:])
        return code
    for command, module in known.items():
        purpose = (importlib.import_module(module).__doc__ or "").partition("\n")[0]
        print(f"  {command:<12} {purpose}")
    if name in ("", "-h", "--help"):
        return 0
    print(f"scripts/faults: there is no {name!r}; use one of the above", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
