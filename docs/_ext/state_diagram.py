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
    "delayed": (200, 60),
    "queued": (200, 420),
    "waiting": (330, 260),
    "running": (600, 270),
    "completed": (1020, 50),
    "failed": (1020, 160),
    "dead": (1020, 290),
    "cancelled": (1020, 450),
}
WIDTH, HEIGHT = 120, 44

# (from, to) -> path of the arrow, and where its label stands: x, y, text-anchor
ARROWS: dict[tuple[str | None, str], tuple[str, tuple[int, int, str]]] = {
    (None, "delayed"): ("M 20 60 H 134", (75, 50, "middle")),
    (None, "queued"): ("M 20 420 H 134", (75, 410, "middle")),
    ("delayed", "queued"): ("M 200 82 V 394", (210, 170, "start")),
    ("waiting", "queued"): ("M 330 282 C 320 340 290 380 262 400", (330, 345, "start")),
    ("running", "waiting"): ("M 560 248 C 510 240 450 246 396 252", (470, 234, "middle")),
    ("queued", "running"): ("M 264 412 C 380 390 520 350 580 298", (420, 366, "start")),
    ("running", "queued"): ("M 610 292 C 600 400 440 434 266 430", (500, 440, "middle")),
    ("running", "delayed"): ("M 590 248 C 560 120 400 60 266 60", (420, 60, "middle")),
    ("running", "completed"): ("M 620 248 C 650 120 760 50 954 50", (780, 52, "middle")),
    ("running", "failed"): ("M 660 260 L 954 166", (812, 176, "middle")),
    ("running", "dead"): ("M 660 274 L 954 290", (812, 272, "middle")),
    ("running", "cancelled"): ("M 640 292 C 680 380 760 440 954 450", (690, 390, "start")),
    ("queued", "cancelled"): ("M 220 442 C 280 520 560 520 954 468", (560, 502, "middle")),
    ("waiting", "cancelled"): ("M 300 282 C 290 330 330 560 700 520 C 830 505 900 490 970 476", (700, 512, "start")),
    ("delayed", "cancelled"): ("M 150 82 C 60 260 80 570 360 570 C 640 570 860 560 990 476", (560, 560, "middle")),
    ("failed", "queued"): ("M 1080 160 H 1110 V 610 H 120 V 470 L 152 446", (1120, 400, "start")),
    ("dead", "queued"): ("M 1080 290 H 1110", (1120, 400, "start")),
    ("cancelled", "queued"): ("M 1080 450 H 1110", (1120, 400, "start")),
}
MARK = '<marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'


def svg() -> str:
    """Return the diagram; raise if a move has no arrow here, or an arrow no move."""
    moves = {(before and str(before), str(after)): by for (before, after), by in MOVES.items()}
    if missing := moves.keys() ^ ARROWS.keys():
        raise ValueError(f"the state diagram and MOVES differ: {sorted(missing, key=str)}")
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1190 630" role="img" font-family="inherit" font-size="15">',
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
