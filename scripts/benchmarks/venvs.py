"""Where the peers live: an environment of its own for each, made on first use at the versions pinned in peers/<name>.txt.

    python_of("arq")         the interpreter of peers/arq.txt, with arq in it
    node_modules("bullmq")   the folder that peers/bullmq/package.json was installed into; None where Node is not there

They are kept in .bench/ at the root (never in git), and made anew when the pins or the interpreter change. Nothing of a
peer comes into the environment of the project, and nothing of the project into a peer's.
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
    """All that have pins."""
    return tuple(sorted(file.stem for file in PINS.glob("*.txt")))


def python_of(peer: str) -> Path:
    """The interpreter of a peer's environment."""
    pins = PINS / f"{peer}.txt"
    if not pins.exists():
        raise SystemExit(f"there is no peer {peer!r}; there are: {', '.join(peers())}")
    place = CACHE / peer
    python = place / "bin" / "python"

    def make() -> None:
        _run([sys.executable, "-m", "venv", str(place)], f"could not make an environment for {peer}")
        _run(
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input",
             "--requirement", str(pins)],
            f"pip could not install {peer}",
        )  # fmt: skip

    _once(place, hashlib.sha256(pins.read_bytes() + sys.version.encode()).hexdigest(), make)
    return python


def node_modules(peer: str) -> Path | None:
    """The folder in which `node` finds a peer's packages; None where node or npm is not there."""
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
    """Makes a place where it is not there as wanted. Two at once: the second finds the work done."""
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
    """One step, silent unless it fails; then its own words and one sentence."""
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"{done.stdout}\nscripts/bench: {failed} (exit {done.returncode}); its own words are above.")
