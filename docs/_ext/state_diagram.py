"""Draw the states of a run as an SVG, from the table `MOVES`.

The positions are fixed here, the arrows and their labels come from `MOVES`. The build fails if a move has no arrow.
"""

from __future__ import annotations

from html import escape
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive

from coordinator.model.run import MOVES

STATES = {
    "delayed": (240, 120),
    "queued": (240, 330),
    "running": (560, 225),
    "completed": (980, 50),
    "failed": (980, 150),
    "dead": (980, 270),
    "cancelled": (980, 420),
}
WIDTH, HEIGHT = 120, 44

# (from, to) -> path of the arrow, and where its label stands: x, y, text-anchor
ARROWS: dict[tuple[str | None, str], tuple[str, tuple[int, int, str]]] = {
    (None, "delayed"): ("M 20 120 H 174", (70, 110, "middle")),
    (None, "queued"): ("M 20 330 H 174", (70, 320, "middle")),
    ("delayed", "queued"): ("M 240 142 V 302", (250, 226, "start")),
    ("queued", "running"): ("M 300 318 L 494 240", (380, 272, "end")),
    ("running", "queued"): ("M 560 247 C 540 320 440 340 306 336", (450, 352, "middle")),
    ("running", "delayed"): ("M 540 203 C 510 130 400 110 306 116", (440, 98, "middle")),
    ("running", "completed"): ("M 580 203 C 610 100 720 50 914 50", (720, 52, "middle")),
    ("running", "failed"): ("M 620 216 L 914 156", (752, 152, "middle")),
    ("running", "dead"): ("M 620 232 L 914 266", (790, 232, "middle")),
    ("running", "cancelled"): ("M 600 247 C 640 330 720 390 914 408", (690, 340, "start")),
    ("queued", "cancelled"): ("M 260 352 C 300 430 460 440 914 424", (520, 418, "middle")),
    ("delayed", "cancelled"): ("M 190 142 C 110 260 130 490 380 490 C 580 490 740 480 930 446", (520, 480, "middle")),
    ("failed", "queued"): ("M 1040 150 H 1080 V 540 H 160 V 390 L 192 356", (1090, 340, "start")),
    ("dead", "queued"): ("M 1040 270 H 1080", (1090, 340, "start")),
    ("cancelled", "queued"): ("M 1040 420 H 1080", (1090, 340, "start")),
}
MARK = '<marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'


def drawn_moves() -> dict[tuple[str | None, str], frozenset[str]]:
    """Return the moves that can happen: those out of a status that no script enters are left out."""
    entered = {after for _, after in MOVES}
    return {move: by for move, by in MOVES.items() if move[0] is None or move[0] in entered}


def svg() -> str:
    """Return the diagram; raise if a move has no arrow here, or an arrow no move."""
    moves = {(before and str(before), str(after)): by for (before, after), by in drawn_moves().items()}
    if missing := moves.keys() ^ ARROWS.keys():
        raise ValueError(f"the state diagram and MOVES differ: {sorted(missing, key=str)}")
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1150 560" role="img" font-family="inherit" font-size="15">',
        "<title>The states of a run and the scripts that move it</title>",
        f'<defs>{MARK}<path d="M 0 0 L 10 5 L 0 10 z" fill="currentColor"/></marker></defs>',
    ]
    labels = {}
    for move, by in moves.items():
        path, place = ARROWS[move]
        joins = move in (("dead", "queued"), ("cancelled", "queued"))  # they join the arrow of ("failed", "queued")
        end = "" if joins else ' marker-end="url(#arrow)"'
        parts.append(f'<path d="{path}" fill="none" stroke="currentColor" stroke-width="1.4"{end}/>')
        labels[place] = ", ".join(sorted(by))
    for (x, y, anchor), label in labels.items():
        parts.append(f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="13">{escape(label)}</text>')
    for state, (x, y) in STATES.items():
        box = f'x="{x - WIDTH // 2}" y="{y - HEIGHT // 2}" width="{WIDTH}" height="{HEIGHT}" rx="8"'
        parts.append(f'<rect {box} fill="none" stroke="currentColor" stroke-width="2"/>')
        parts.append(f'<text x="{x}" y="{y + 5}" text-anchor="middle" font-weight="bold">{state}</text>')
    return "\n".join([*parts, "</svg>"])


class StateDiagram(Directive):
    """`{state-diagram}`: the SVG."""

    def run(self) -> list[nodes.Node]:
        return [nodes.raw("", f'<figure class="state-diagram">{svg()}</figure>', format="html")]


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("state-diagram", StateDiagram)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
