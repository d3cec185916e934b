"""Write the figures of `scripts/bench handover` as JSON, as a section of docs/benchmarks/README.md, and as a plot."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[3] / "docs" / "benchmarks"
BEGIN, END = "<!-- handover: written by scripts/bench handover --write -->", "<!-- /handover -->"
NAMES = {"run-coordinator": "run-coordinator", "arq": "arq 0.28", "saq": "SAQ 0.26"}


def write(found: dict[str, Any]) -> None:
    slim = json.loads(json.dumps(found))
    for part in slim["parts"].values():
        for value in part.values():
            if isinstance(value, dict):
                value.pop("samples", None)
    (DOCS / "handover.json").write_text(json.dumps(slim, indent=2) + "\n")
    readme = DOCS / "README.md"
    text, section = readme.read_text(), f"{BEGIN}\n{describe(found)}\n{END}"
    if BEGIN in text:
        text = re.sub(re.escape(BEGIN) + r".*" + re.escape(END), lambda _: section, text, flags=re.DOTALL)
    else:
        text = f"{text.rstrip()}\n\n{section}\n"
    readme.write_text(text)
    plot(found, DOCS / "handover.png")


def describe(found: dict[str, Any]) -> str:
    parts, lost, again = found["parts"], found["parts"]["tree lost"], found["parts"]["tree started again"]
    rows = [_row(label, parts[f"stop {name}"], parts[f"kill {name}"]) for name, label in NAMES.items()]
    lines = [
        "## When a worker process ends: `scripts/bench handover`",
        "",
        f"{found['runs']} long runs on two worker processes. Each process has a free slot for every run of the other.",
        f"The {found['rounds']} rounds of all queues are interleaved. All use their defaults, except for 100 jobs at once.",
        "The figures are milliseconds (p50 / p99) until the handler's first line in another process.",
        f"Valkey {found['valkey']}, {found['cores']} cores, load {found['load']}.",
        "",
        "| | stop: since the handler stopped | stop: since the request | jobs that resume where they were | attempts used "
        "| SIGKILL: since the kill |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
        f"If a supervisor is killed with all its processes (lease {found['lease']:g} s), it takes {_pair(lost['from_kill'])}",
        f"until another fleet has the runs{_missing(lost)}. If the fleet is restarted on the same host,",
        f"it takes {_pair(again['from_kill'])} including the start{_missing(again)}.",
        "",
        "![hand-over](handover.png)",
    ]
    return "\n".join(lines)


def _row(label: str, stop: dict[str, Any], kill: dict[str, Any]) -> str:
    cells = [
        label, _pair(stop["from_release"]), _pair(stop["from_signal"]), f"{stop['went_on']} of {stop['from_signal']['count']}",
        str(stop["tries"]), f"{_pair(kill['from_kill'])}{_missing(kill)}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _pair(value: dict[str, Any]) -> str:
    return f"{value['p50']:,.1f} / {value['p99']:,.1f}" if "p50" in value else "-"


def _missing(part: dict[str, Any]) -> str:
    return f" ({part['missing']} did not start again within the time limit)" if part["missing"] else ""


def plot(found: dict[str, Any], file: Path) -> None:
    try:
        import matplotlib  # Only a plot needs this import.
    except ImportError:
        raise SystemExit("--write needs matplotlib: .venv/bin/pip install -c constraints.txt -e '.[bench]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = [
        (f"{NAMES[name]}: {word}", found["parts"][f"{verb} {name}"][key])
        for verb, key, word in (("stop", "from_release", "SIGTERM"), ("kill", "from_kill", "SIGKILL"))
        for name in NAMES
    ]
    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    for label, value in lines:
        if "samples" in value:
            samples = value["samples"]
            axes.plot(samples, [(n + 1) / len(samples) for n in range(len(samples))], label=label)
    axes.set(
        xscale="log", xlabel="milliseconds until the handler goes again in another process", ylabel="part of the runs"
    )
    axes.grid(alpha=0.3)
    axes.set_xlim(left=1)
    axes.legend(loc="upper left")
    figure.tight_layout()
    figure.savefig(file, dpi=120)
