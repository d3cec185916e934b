"""Write the counts into docs/faults.md, from the records only."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from tests.faults.lab.triggers import HIT
from tests.faults.records import archive as records
from tests.faults.records.archive import Record

DOC = records.ROOT / "docs" / "faults.md"
BEGIN, END = "<!-- counts: written by scripts/faults report -->", "<!-- end of counts -->"
SCRIPTS = tuple(script.name for script in HIT)
WAYS = {"cut": "lost replies", "late": "late requests"}

# The former name of a script in older records -> its present name. The records themselves are never edited.
RENAMED_SCRIPTS = {
    "fell": "block_children",
    "found": "create_namespace",
    "mend_entry": "repair_entry",
    "mend_key": "repair_key",
    "mend_run": "repair_run",
    "mend_type": "repair_type",
}
COLUMNS = (
    "attempts",
    "acknowledged",
    "lost",
    "duplicated",
    "stale",
    "fenced",
    "recovered",
    "dead",
    "steps",
    "steps_redone",
)


def table(kept: Iterable[Record], scripts: Collection[str] = SCRIPTS) -> str:
    """Return one row for each campaign with the sums of its records. Failed records count, and are listed below the table.

    `scripts` are the names of those that the campaign `replies` hits.
    """
    campaigns: dict[str, list[Record]] = defaultdict(list)
    for record in kept:
        campaigns[record.campaign].append(record)
    heads = ["campaign", "records", "count", *(column.replace("_", " ") for column in COLUMNS), "95 % bound", "minutes"]
    lines = [_row(heads), _row(["---"] * len(heads))]
    lines += [_row(_summed(name, found)) for name, found in sorted(campaigns.items())]
    lines += [""]
    for name, found in sorted(campaigns.items()):
        if windows := [record.counts["window_seconds"] for record in found if "window_seconds" in record.counts]:
            lines.append(f"- {name}: lost writes had been acknowledged for at most {max(windows):.2f} s.")
    lines += _least_hit(campaigns.get("replies", []), scripts)
    failed = [record for found in campaigns.values() for record in found if record.verdict == "failed"]
    lines += ["", "Records that ended with a breach:" if failed else "No record ended with a breach.", ""]
    lines += [f"- {r.campaign}, seed {r.seed}, commit {r.commit}, {r.count} faults" for r in failed]
    return "\n".join(lines).rstrip()


def _least_hit(found: Sequence[Record], scripts: Collection[str]) -> list[str]:
    """Return a line with the smallest number of faults that a script had. A sum could hide a script that had no fault."""
    hits: Counter[tuple[str, str]] = Counter()
    for record in found:
        for name, count in record.counts.items():
            what, _, way = name.removeprefix("fault ").rpartition(" ")
            if name.startswith("fault ") and way in WAYS:
                hits[way, RENAMED_SCRIPTS.get(what, what)] += int(count)
    if not hits:
        return []
    least = {way: min(scripts, key=lambda name: hits[way, name]) for way in WAYS}
    parts = [f"at least {hits[way, name]} {WAYS[way]} (`{name}`)" for way, name in least.items()]
    return [f"- replies: each of {len(scripts)} scripts had {' and '.join(parts)}."]


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _summed(name: str, found: Sequence[Record]) -> list[str]:
    count = sum(record.count for record in found)
    sums = [
        f"{sum(r.counts.get(column, 0) for r in found):,}" if any(column in r.counts for r in found) else "–"
        for column in COLUMNS
    ]
    bound = f"{3 / count:.2g}" if count else "–"
    minutes = sum(record.seconds for record in found) / 60
    return [name, str(len(found)), f"{count:,}", *sums, bound, f"{minutes:.1f}"]


def rendered(text: str, kept: Iterable[Record]) -> str:
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table(kept)}\n\n{END}{after}"


def main(arguments: Sequence[str], doc: Path = DOC) -> int:
    doc.write_text(rendered(doc.read_text(), records.read()))
    print(table(records.read()))
    return 0
