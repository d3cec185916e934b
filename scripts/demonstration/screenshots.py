"""Take pictures of the page: `python -m scripts.demonstration.screenshots [--all FOLDER]`.

A fleet works under a steady load in a temporary folder. The pictures are taken a moment after a process was killed, or while the
fleet is rolled.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page

from coordinator import Client, Status, Unconfirmed, Unreachable
from scripts.demonstration.browser import open_browser
from scripts.demonstration.processes import ROOT, DemoProcesses

APP = "scripts.demonstration.showcase:runs"
GUIDE = ROOT / "docs" / "guides" / "dashboard"
SLOTS = 6
TOPICS = ("ocean currents", "moss", "glaciers", "sourdough", "comets", "bees", "salt", "kites", "amber", "lighthouses")
CUSTOMERS = ("acme", "globex", "initech", "umbrella")
WIDE, PHONE = (1280, 860), (390, 800)


class Load(threading.Thread):
    """Enqueue runs of all kinds at a steady pace until `stop`."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url, self._ended = url, threading.Event()

    def run(self) -> None:
        with Client(self._url) as client:
            for number in range(8):
                client.enqueue("approval", {"amount": 1000 * number}, meta={"tenant": CUSTOMERS[number % 4]})
            number = 0
            while not self._ended.wait(0.25):
                number += 1
                with suppress(Unreachable, Unconfirmed):  # the machine is busy
                    self._enqueue(client, number)

    def _enqueue(self, client: Client, number: int) -> None:
        tenant = {"tenant": CUSTOMERS[number % 4]}
        client.enqueue("invoice", {"customer": tenant["tenant"]}, meta=tenant)
        if number % 8 == 0:
            topic = random.choice(TOPICS)
            client.enqueue("research", {"topic": topic, "turns": 14}, meta=tenant)
        if number % 3 == 0:
            client.enqueue("deliver", {"address": f"https://hooks.example/{number}"}, meta=tenant)
        if number % 25 == 0:
            client.enqueue("book", {"chapters": 4}, meta=tenant)
        if number % 12 == 0:
            client.enqueue("export", {"customer": tenant["tenant"]}, group="acme")

    def stop(self) -> None:
        self._ended.set()


class Camera:
    """Take pictures of the pages of one web server."""

    def __init__(self, browser: Browser, address: str) -> None:
        self._browser, self._address = browser, address
        self.errors: list[str] = []

    def open(self, path: str, size: tuple[int, int] = WIDE, theme: str = "light") -> Page:
        """Open a page, and return when its live board has arrived."""
        scale = 1.5 if size is PHONE else 1
        page = self._browser.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme="dark" if theme == "dark" else "light",
            device_scale_factor=scale,
        ).new_page()  # fmt: skip
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.goto(self._address + path)
        page.locator("#connection", has_text="live").wait_for(timeout=60_000)
        # A browser without a window has no scroll bars, and the page leaves room for one.
        page.evaluate("document.documentElement.style.scrollbarGutter = 'auto'")
        page.wait_for_timeout(800)
        return page

    def save(self, page: Page, file: Path, tallest: int = 1200) -> None:
        """Write a picture of the page, and close the page."""
        size = page.viewport_size
        assert size is not None
        height = min(
            tallest, max(300, page.evaluate("document.querySelector('main').getBoundingClientRect().bottom + 20"))
        )
        page.set_viewport_size({"width": size["width"], "height": int(height)})
        page.wait_for_timeout(200)
        # All colours are kept: a palette of 256 colours changes large areas, or the small marks of the statuses.
        Image.open(io.BytesIO(page.screenshot())).convert("RGB").save(file, optimize=True)
        page.context.close()


def wait_for(found: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    until = time.monotonic() + seconds
    while not (value := found()):
        if time.monotonic() > until:
            raise SystemExit(f"scripts/screenshots: no {what} after {seconds:.0f} s")
        time.sleep(0.1)
    return value


def kill_one(client: Client) -> tuple[int, str]:
    """Kill the process that has the most attempts of the kind research. Return its id, and the id of one of these runs."""

    def victim() -> tuple[int, str] | None:
        running = [view for view in client.list(status=Status.RUNNING, kind="research") if view.iteration > 3]
        processes = {worker.id: worker.pid for worker in client.workers()}
        owned = [(processes[view.owner], view.id) for view in running if view.owner in processes]
        return max(owned, key=lambda one: sum(one[0] == other[0] for other in owned)) if owned else None

    pid, run = wait_for(victim, "run to kill")
    os.kill(pid, signal.SIGKILL)
    return pid, run


def picture_of_kill(camera: Camera, client: Client, file: Path, theme: str) -> str:
    """Take a picture of the overview a moment after a process was killed. Return the id of a run that it executed."""
    for _ in range(5):
        page = camera.open("#/", theme=theme)
        # The page shows the card of a killed process for six seconds of its clock. On a busy machine the picture may come later,
        # so the clock stands still. Playwright takes seconds, and the browser has milliseconds.
        page.clock.set_fixed_time(page.evaluate("Date.now()") / 1000)
        pid, run = kill_one(client)
        card, moved = page.locator(f'.card.gone[data-pid="{pid}"]'), page.locator(".chip .again", has_text="×2")
        card.wait_for(timeout=30_000)
        page.wait_for_timeout(900)  # the runs land on other cards
        if card.is_visible() and moved.count():
            camera.save(page, file, 860)
            return run
        page.context.close()  # on a busy machine the runs that moved may have ended
        wait_for(lambda: len(client.workers()) == 3, "new process")
    raise SystemExit("scripts/screenshots: no picture shows both the card of a killed process and a run that has moved")


def take_guide(camera: Camera, client: Client, processes: DemoProcesses, folder: Path) -> str:
    """Take the pictures of the guide, and return the id of a run that was lost and continued."""
    lost = picture_of_kill(camera, client, folder / "overview.png", "light")
    wait_for(lambda: client.handle(lost).view().status is not Status.QUEUED, "second attempt")
    camera.save(camera.open(f"#/runs/{lost}"), folder / "run.png", 1500)
    picture_of_kill(camera, client, folder / "dark.png", "dark")
    camera.save(camera.open("#/runs?status=failed"), folder / "runs.png", 700)
    camera.save(camera.open("#/schedules"), folder / "schedules.png", 700)
    camera.save(camera.open("#/", PHONE), folder / "phone.png", 800)
    camera.save(camera.open(f"#/runs/{lost}", PHONE), folder / "phone-run.png", 800)
    page = camera.open("#/fleets")
    rolling = threading.Thread(target=processes.roll)
    rolling.start()
    page.get_by_text("Roll in progress").wait_for(timeout=30_000)
    page.get_by_text("1 of 3 replaced").wait_for(timeout=30_000)
    camera.save(page, folder / "fleets.png", 700)
    rolling.join()
    return lost


def take_all(camera: Camera, client: Client, lost: str, folder: Path) -> None:
    """Take a picture of every page in light, in dark and at the width of a phone."""
    waiting = next(iter(client.list(status=Status.WAITING, kind="approval", limit=1))).id
    failed = next(iter(client.list(status=Status.FAILED, limit=1))).id
    parents = [view.id for view in client.list(kind="book", limit=3)]
    pages = {
        "overview": "#/", "runs": "#/runs", "failed": "#/runs?status=failed", "waiting": "#/runs?status=waiting",
        "queued": "#/runs?status=queued", "none": "#/runs?status=dead", "run-lost": f"#/runs/{lost}",
        "run-waiting": f"#/runs/{waiting}", "run-failed": f"#/runs/{failed}", "run-parent": f"#/runs/{parents[0]}",
        "run-missing": "#/runs/01m7m4n01y21kp9fr74z-00", "schedules": "#/schedules", "fleets": "#/fleets",
    }  # fmt: skip
    for name, path in pages.items():
        camera.save(camera.open(path), folder / f"{name}.png", 3000)
        camera.save(camera.open(path, theme="dark"), folder / f"{name}-dark.png", 3000)
        camera.save(camera.open(path, PHONE), folder / f"{name}-phone.png", 3000)


def take(processes: DemoProcesses, folder: Path | None) -> list[str]:
    """Take the pictures, and return the errors of the page's scripts."""
    processes.start_server(synced=False)
    address = processes.start_web("--allow-changes")
    with open_browser() as browser, Client(processes.url) as client:
        camera = Camera(browser, address)
        if folder is not None:
            for name, path in {
                "overview": "#/",
                "runs": "#/runs",
                "schedules": "#/schedules",
                "fleets": "#/fleets",
            }.items():
                camera.save(camera.open(path), folder / f"empty-{name}.png", 3000)
        processes.start_coordinator()
        processes.start_fleet(3, APP, SLOTS)
        client.schedule("nightly-report", "0 3 * * *", "book", {"chapters": 6})
        client.schedule("poll", 20, "invoice", {"customer": "acme"})
        client.schedule("monthly-close", "30 6 1 * *", "approval", {"amount": 5000}, tz="Europe/Berlin")
        load = Load(processes.url)
        load.start()
        viewer = camera.open("#/")  # endings are counted only while a page is open
        wait_for(lambda: client.status().counts.get(Status.FAILED, 0) > 6, "failed runs", 120)
        lost = take_guide(camera, client, processes, GUIDE)
        if folder is not None:
            take_all(camera, client, lost, folder)
        load.stop()
        viewer.context.close()
        return camera.errors


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/screenshots", description=__doc__)
    parser.add_argument("--all", type=Path, metavar="FOLDER", dest="folder")
    folder: Path | None = parser.parse_args().folder
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    processes = DemoProcesses()
    try:
        errors = take(processes, folder)
    finally:
        processes.finish()
        processes.clear()
        processes.remove_folder()
    if errors:
        raise SystemExit(f"scripts/screenshots: scripts of the page failed: {errors}")


if __name__ == "__main__":
    main()
