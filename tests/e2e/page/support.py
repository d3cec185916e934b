"""Helpers for the tests of the page: start the web server, and read what the page shows."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from typing import Any

from tests.e2e.processes import Stage
from tests.waiting import wait_until

SCRIPT = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\'"`'
Page = Any
OpenPage = Callable[..., Page]


def start_web(stage: Stage, *options: str, port: int = 0) -> tuple[subprocess.Popen[bytes], str]:
    """Start the web server, and return its process and the address of the page."""
    process = stage._start("coordinator", "web", "--port", str(port), *options)
    log = stage.directory / f"log-{len(stage.started) - 1}"
    found = wait_until(lambda: re.findall(r"http://\S+/", log.read_text()), "the start of the web server", 60)
    return process, found[0]


def board(page: Page) -> dict[int, list[str]]:
    """Return the runs on each card of the board, by process id. A card of a process that is gone has the key -pid."""
    cards = page.eval_on_selector_all(
        ".card",
        "cards => cards.map(c => [c.dataset.pid, c.classList.contains('gone'), "
        "[...c.querySelectorAll('.chip')].map(chip => chip.dataset.run)])",
    )
    return {(-int(pid) if gone else int(pid)): runs for pid, gone, runs in cards}


def wait_for_chips(page: Page, processes: int, runs: int) -> dict[int, list[str]]:
    """Return the board when it shows this number of processes and runs."""

    def found() -> dict[int, list[str]]:
        shown = board(page)
        return shown if len(shown) == processes and sum(map(len, shown.values())) == runs else {}

    return wait_until(found, f"{runs} chips", 60)


def go(page: Page, path: str) -> None:
    page.goto(page.address + path)


def show(page: Page, path: str) -> None:
    """Open a page again, and return when its live board has arrived."""
    go(page, path)
    page.reload()
    wait_until(lambda: page.locator("#connection").text_content() == "live", f"the page {path}", 60)
