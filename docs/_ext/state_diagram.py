"""Draw the states of a run as an SVG, from the table `MOVES`.

The positions are fixed here, the arrows and their labels come from `MOVES`. The build fails if a move has no arrow.
"""

from __future__ import annotations

from html import escape
from textwrap import wrap
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive

from coordinator.model.run import MOVES

STATES = {
    "delayed": (200, 60),
    "queued": (200, 420),
    "waiting": (360, 240),
    "running": (620, 240),
    "completed": (1040, 50),
    "failed": (1040, 160),
    "dead": (1040, 290),
    "cancelled": (1040, 450),
}
WIDTH, HEIGHT = 120, 44
LABEL_WIDTH, LINE_HEIGHT = 34, 16  # characters of one line of a label, and the distance of two lines

# (from, to) -> path of the arrow, and where the first line of its label stands: x, y, text-anchor
ARROWS: dict[tuple[str | None, str], tuple[str, tuple[int, int, str]]] = {
    (None, "delayed"): ("M 20 60 H 134", (75, 50, "middle")),
    (None, "queued"): ("M 10 420 H 134", (56, 410, "middle")),
    ("delayed", "queued"): ("M 200 82 V 394", (210, 170, "start")),
    ("waiting", "queued"): ("M 330 262 C 310 330 280 370 250 394", (292, 330, "end")),
    ("running", "waiting"): ("M 560 240 H 426", (493, 230, "middle")),
    ("queued", "running"): ("M 264 412 C 380 400 540 340 600 266", (452, 348, "end")),
    ("running", "queued"): ("M 630 262 C 620 400 440 440 266 432", (540, 428, "start")),
    ("running", "delayed"): ("M 590 218 C 560 110 420 60 266 60", (440, 38, "start")),
    ("running", "completed"): ("M 640 218 C 680 110 800 50 974 50", (740, 82, "end")),
    ("running", "failed"): ("M 680 228 L 974 166", (860, 130, "middle")),
    ("running", "dead"): ("M 680 244 L 974 286", (870, 245, "middle")),
    ("running", "cancelled"): ("M 650 262 C 680 370 780 440 974 446", (765, 364, "start")),
    ("queued", "cancelled"): ("M 230 442 C 260 530 420 545 640 545 C 820 545 940 520 1000 478", (640, 536, "middle")),
    ("waiting", "cancelled"): ("M 390 262 C 394 400 430 500 640 500 C 780 500 880 490 974 462", (690, 490, "middle")),
    ("delayed", "cancelled"): (
        "M 150 82 C 115 180 122 400 128 440 C 150 570 300 590 560 590 C 860 590 1010 560 1040 478",
        (640, 581, "middle"),
    ),
    ("failed", "queued"): ("M 1100 160 H 1130 V 625 H 180 V 448", (1138, 400, "start")),
    ("dead", "queued"): ("M 1100 290 H 1130", (1138, 400, "start")),
    ("cancelled", "queued"): ("M 1100 450 H 1130", (1138, 400, "start")),
}
MARK = '<marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'


def svg() -> str:
    """Return the diagram; raise if a move has no arrow here, or an arrow no move."""
    moves = {(before and str(before), str(after)): by for (before, after), by in MOVES.items()}
    if missing := moves.keys() ^ ARROWS.keys():
        raise ValueError(f"the state diagram and MOVES differ: {sorted(missing, key=str)}")
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1200 640" role="img" font-family="inherit" font-size="15">',
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
        lines = [
            f'<tspan x="{x}" y="{y + number * LINE_HEIGHT}">{escape(line)}</tspan>'
            for number, line in enumerate(wrap(label, LABEL_WIDTH))
        ]
        parts.append(f'<text text-anchor="{anchor}" font-size="13">{" ".join(lines)}</text>')
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
