"""Measure how soon the board of the page shows that a process was killed or rolled, in a real Chromium.

    scripts/bench board [--kills N] [--rolls N] [--json]

A fleet of three processes executes nine runs. A script in the page notes when a chip leaves its card or lands on another one: the
time of the next frame after the change of the document. The server's times come from the stories of the runs. All processes are on
one machine, so their clocks agree. The figures are milliseconds, as p50 and p90 over all runs that moved:

    ended    from the kill, or from the call of `workers roll`, until the server has recorded that the attempt is lost or released
    left     from this record until the chip has left the card of its old process
    resumed  from this record until the server has recorded the next attempt
    landed   from the record of the next attempt until the chip is on the card of its new process
    card     from the first recorded loss until the card of the killed process is shown as gone

The benchmark fails if the board shows one of the changes `left`, `landed` and `card` later than 300 ms, as p50.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import time
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page

from coordinator import Client, RunView
from scripts.demonstration.browser import open_browser
from scripts.demonstration.processes import DemoProcesses

APP = "scripts.benchmarks.board_app:runs"
PROCESSES, SLOTS, RUNS = 3, 6, 9
LIMIT, LIMITED = 300, ("left", "landed", "card")  # ms as p50, and the figures that the page is responsible for
OBSERVE = """() => {
  window.seen = [];
  let before = {};
  const look = () => {
    const now = {};
    for (const card of document.querySelectorAll('.card')) {
      now['card ' + card.dataset.pid] = card.classList.contains('gone') ? 'gone' : 'here';
      for (const chip of card.querySelectorAll('.chip')) now[chip.dataset.run] = card.dataset.pid;
    }
    const changed = Object.keys({...before, ...now}).filter((name) => before[name] !== now[name]);
    before = now;
    requestAnimationFrame(() => { for (const name of changed) window.seen.push([Date.now(), name, now[name] ?? '']); });
  };
  look();
  const wanted = {subtree: true, childList: true, attributes: true, attributeFilter: ['class']};
  new MutationObserver(look).observe(document.getElementById('board'), wanted);
}"""
Figures = dict[str, list[float]]


class Stage:
    """A fleet with endless runs, and a page that shows it."""

    def __init__(self, client: Client, page: Page) -> None:
        self.client, self.page = client, page

    def views(self) -> dict[str, RunView]:
        return {view.id: view for view in self.client.list(kind="endless")}

    def owners(self) -> dict[str, int]:
        """Return the process id of each running run, according to the server."""
        pids = {worker.id: worker.pid for worker in self.client.workers() if not (worker.expired or worker.condemned)}
        return {id: pids[view.owner] for id, view in self.views().items() if view.owner in pids}

    def chips(self) -> dict[str, int]:
        """Return the process id of each run, according to the board."""
        found = self.page.eval_on_selector_all(
            ".card:not(.gone) .chip",
            "chips => chips.map(chip => [chip.dataset.run, chip.closest('.card').dataset.pid])",
        )
        return {run: int(pid) for run, pid in found}

    def settle(self, away: set[int]) -> dict[str, int]:
        """Wait until no run is in one of the processes `away`, and the board agrees with the server. Return the runs' processes."""

        def settled() -> dict[str, int] | None:
            owners = self.owners()
            live = {one.pid for one in self.client.workers() if not (one.draining or one.expired or one.condemned)}
            good = len(owners) == RUNS and len(live) == PROCESSES and not away & {*owners.values(), *live}
            return owners if good and self.chips() == owners else None

        return wait_for(settled, "a fleet at rest")

    def measure(self, act: Callable[[], None], away: set[int], killed: int | None = None) -> Figures:
        """Return the delays of all runs that leave the processes `away` when `act` is called."""
        before, attempts = self.owners(), {id: view.counters.attempt for id, view in self.views().items()}
        self.page.evaluate("window.seen = []")
        began = 1000 * time.time()
        act()
        after = self.settle(away)
        self.page.wait_for_timeout(100)
        seen = self.page.evaluate("window.seen")
        found: Figures = {"ended": [], "left": [], "resumed": [], "landed": []}
        losses = []
        for id, view in self.views().items():
            if before.get(id) not in away:
                continue
            entry = next(one for one in view.story if one.attempt == attempts[id])
            ended = 1000 * entry.ended.timestamp()
            losses.append(ended)
            # A run that moved several times in a roll is measured at its first move and its last one.
            assert view.started is not None
            started = 1000 * view.started.timestamp()
            found["ended"].append(ended - began)
            found["left"].append(first_time(seen, id, lambda pid, old=before[id]: pid != str(old)) - ended)
            found["landed"].append(first_time(seen, id, lambda pid, new=after[id]: pid == str(new)) - started)
            if view.counters.attempt == attempts[id] + 1:
                found["resumed"].append(started - ended)
        if killed is not None:
            found["card"] = [first_time(seen, f"card {killed}", lambda state: state != "here") - min(losses)]
        return found


def first_time(seen: list[Any], name: str, fits: Callable[[str], bool]) -> float:
    """Return the time in ms at which the page first showed a value of `name` for which `fits` returns True."""
    return next(float(at) for at, what, value in seen if what == name and fits(value))


def wait_for(found: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    until = time.monotonic() + seconds
    while not (value := found()):
        if time.monotonic() > until:
            raise SystemExit(f"scripts/bench board: no {what} after {seconds:.0f} s")
        time.sleep(0.05)
    return value


def measure(processes: DemoProcesses, kills: int, rolls: int) -> dict[str, Any]:
    processes.start_server(synced=False)
    processes.start_coordinator()
    processes.start_fleet(PROCESSES, APP, SLOTS)
    address = processes.start_web()
    found: dict[str, Figures] = {"kill": {}, "roll": {}}
    with open_browser() as browser, Client(processes.url) as client:
        page = browser.new_page()
        page.goto(address)
        client.enqueue_many([("endless", {})] * RUNS)
        stage = Stage(client, page)
        wait_for(lambda: len(stage.chips()) == RUNS, "nine runs on the board")
        page.evaluate(OBSERVE)
        for _ in range(kills):
            victim = random.choice(list(stage.settle(set()).values()))
            add(found["kill"], stage.measure(lambda pid=victim: os.kill(pid, signal.SIGKILL), {victim}, victim))
        for _ in range(rolls):
            stage.settle(set())
            add(found["roll"], stage.measure(processes.roll, {worker.pid for worker in client.workers()}))
    where = {"kills": kills, "rolls": rolls, "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
    return where | {what: {name: spread(values) for name, values in figures.items()} for what, figures in found.items()}


def too_slow(found: dict[str, Any]) -> list[str]:
    """Return a sentence for each figure of the page whose p50 is above the limit."""
    figures = [(what, name, found[what].get(name, {}).get("p50", 0)) for what in ("kill", "roll") for name in LIMITED]
    return [f"{what} {name}: p50 is {p50} ms, above {LIMIT} ms" for what, name, p50 in figures if p50 > LIMIT]


def add(all_: Figures, some: Figures) -> None:
    for name, values in some.items():
        all_.setdefault(name, []).extend(values)


def spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    if not ordered:
        return {"count": 0}
    return {
        "count": len(ordered), "p50": round(statistics.median(ordered)), "p90": round(ordered[int(0.9 * (len(ordered) - 1))]),
        "max": round(ordered[-1]),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--rolls", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    processes = DemoProcesses()
    try:
        found = measure(processes, options.kills, options.rolls)
    finally:
        processes.finish()
        processes.clear()
        processes.remove_folder()
    if options.json:
        print(json.dumps(found))
    else:
        print(", ".join(f"{name} {found[name]}" for name in ("kills", "rolls", "cores", "load")))
        for what in ("kill", "roll"):
            for name, row in found[what].items():
                print(f"{what}  {name:8}  " + "  ".join(f"{key} {value}" for key, value in row.items()))
    if slow := too_slow(found):
        raise SystemExit("scripts/bench board: the board is too slow: " + "; ".join(slow))


if __name__ == "__main__":
    main()
