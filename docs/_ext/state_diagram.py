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
    "delayed": (180, 120),
    "queued": (180, 330),
    "running": (500, 225),
    "completed": (850, 50),
    "failed": (850, 150),
    "dead": (850, 270),
    "cancelled": (850, 420),
}
WIDTH, HEIGHT = 120, 44

# (from, to) -> path of the arrow, and where its label stands: x, y, text-anchor
ARROWS: dict[tuple[str | None, str], tuple[str, tuple[int, int, str]]] = {
    (None, "delayed"): ("M 20 120 H 114", (64, 110, "middle")),
    (None, "queued"): ("M 20 330 H 114", (64, 320, "middle")),
    ("delayed", "queued"): ("M 180 142 V 302", (190, 226, "start")),
    ("queued", "running"): ("M 240 318 L 434 240", (330, 268, "middle")),
    ("running", "queued"): ("M 500 247 C 480 320 380 340 246 336", (430, 345, "middle")),
    ("running", "delayed"): ("M 480 203 C 450 130 340 110 246 116", (370, 100, "middle")),
    ("running", "completed"): ("M 520 203 C 560 110 650 60 784 50", (610, 78, "middle")),
    ("running", "failed"): ("M 560 212 L 784 158", (672, 152, "middle")),
    ("running", "dead"): ("M 560 232 L 784 266", (672, 232, "middle")),
    ("running", "cancelled"): ("M 540 247 C 580 330 640 390 784 408", (672, 330, "middle")),
    ("queued", "cancelled"): ("M 200 352 C 240 430 400 440 784 424", (420, 412, "middle")),
    ("delayed", "cancelled"): ("M 128 142 C 40 260 60 480 300 480 C 500 480 640 470 800 446", (420, 472, "middle")),
    ("failed", "queued"): ("M 910 150 H 950 V 540 H 90 V 390 L 130 356", (970, 340, "start")),
    ("dead", "queued"): ("M 910 270 H 950", (970, 340, "start")),
    ("cancelled", "queued"): ("M 910 420 H 950", (970, 340, "start")),
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
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1040 560" role="img" font-family="inherit" font-size="15">',
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
