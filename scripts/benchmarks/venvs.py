"""A Python environment for each measured queue, created on first use with the versions pinned in peers/<name>.txt.

    python_of("arq")         the interpreter of peers/arq.txt, with arq installed
    node_modules("bullmq")   the folder into which peers/bullmq/package.json was installed; None without Node

The environments are kept in .bench/ at the root (never in git), and created again when the pins or the interpreter change. The
queues are not installed into the environment of the project, nor the project into theirs.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

PINS = Path(__file__).with_name("peers")
CACHE = Path(__file__).resolve().parents[2] / ".bench"


def peers() -> tuple[str, ...]:
    """Return the names of all queues with pinned versions."""
    return tuple(sorted(file.stem for file in PINS.glob("*.txt")))


def python_of(peer: str) -> Path:
    """Return the interpreter of a queue's environment."""
    pins = PINS / f"{peer}.txt"
    if not pins.exists():
        raise SystemExit(f"there is no queue {peer!r}; the known ones are: {', '.join(peers())}")
    place = CACHE / peer
    python = place / "bin" / "python"

    def make() -> None:
        _run([sys.executable, "-m", "venv", str(place)], f"could not create an environment for {peer}")
        _run(
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input",
             "--requirement", str(pins)],
            f"pip could not install {peer}",
        )  # fmt: skip

    _once(place, hashlib.sha256(pins.read_bytes() + sys.version.encode()).hexdigest(), make)
    return python


def node_modules(peer: str) -> Path | None:
    """Return the folder in which `node` finds a queue's packages, or None without node or npm."""
    if not (shutil.which("node") and shutil.which("npm")):
        return None
    manifest = PINS / peer / "package.json"
    place = CACHE / peer

    def make() -> None:
        place.mkdir(parents=True)
        shutil.copy(manifest, place / "package.json")
        _run(
            ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(place)],
            f"npm could not install {peer}",
        )

    _once(place, hashlib.sha256(manifest.read_bytes()).hexdigest(), make)
    return place / "node_modules"


def _once(place: Path, wanted: str, make: Callable[[], None]) -> None:
    """Create a folder if it does not exist with the wanted contents.

    If two processes call this at once, the second finds the work done.
    """
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = place / "installed"
        if stamp.exists() and stamp.read_text() == wanted:
            return
        shutil.rmtree(place, ignore_errors=True)
        print(f"scripts/bench: installing {place.name} into {place.relative_to(CACHE.parent)} ...", file=sys.stderr)
        make()
        stamp.write_text(wanted)


def _run(command: Sequence[str], failed: str) -> None:
    """Run one step without output. If it fails, print its output and one sentence."""
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"{done.stdout}\nscripts/bench: {failed} (exit code {done.returncode}); its output is above.")
