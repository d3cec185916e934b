"""A job of several phases in a plain function. A resumed run skips completed phases and gets their saved outputs.

workers start report:runs
coordinator enqueue report topic=tides --wait
"""

from __future__ import annotations

from workers import Registry, Retry, Run

runs = Registry()


def make_outline(topic: str) -> list[str]:
    return [f"What {topic} are", f"Why {topic} matter"]


def write_section(title: str) -> str:
    return f"{title}: a paragraph."


@runs.handler(retry=Retry(limit=4))
def report(run: Run, topic: str) -> str:
    outline = run.phase("outline", make_outline, topic)
    sections = []
    for number, title in enumerate(outline, start=1):
        run.note(f"section {number}", done=number, total=len(outline))
        sections.append(run.phase(f"section-{number}", write_section, title))
    return "\n".join(sections)
