"""`scripts/faults NAME …`: finds the module that is called so and calls its `main(arguments) -> exit code`.

A subcommand plugs in by being there: tests/faults/NAME.py, tests/faults/NAME/__init__.py or tests/faults/campaigns/NAME.py.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
_MAIN = re.compile(r"^def main\(arguments", re.M)


def commands() -> dict[str, str]:
    """Name and module of everything that can be called."""
    found: dict[str, str] = {}
    for folder, package in ((HERE, "tests.faults"), (HERE / "campaigns", "tests.faults.campaigns")):
        for path in [*folder.glob("*.py"), *folder.glob("*/__init__.py")]:
            name = path.parent.name if path.name == "__init__.py" else path.stem
            if not name.startswith("_") and _MAIN.search(path.read_text()):
                found[name.replace("_", "-")] = f"{package}.{name}"
    return dict(sorted(found.items()))


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
