"""The laws of outside calls: the rate, the number of calls at once, and the back-off hold for every call that may start."""

from __future__ import annotations

from tests.faults.simulation.facts import BURST, CALLS_AT_ONCE, PER, RATE
from tests.faults.simulation.laws.step import Broken, Step

SLACK = 0.001


class Rates:
    """The one rate of a seed: a bucket whose level falls with time, and the calls that are under way."""

    def __init__(self) -> None:
        self._level, self._at, self._resumes = 0.0, 0, 0
        self._open: dict[tuple[str, str], float] = {}  # worker and number of a call -> reserved tokens
        self._over: set[tuple[str, str]] = set()
        self._abandoned: dict[
            tuple[str, str], float
        ] = {}  # calls of workers that are gone, which may still report their cost

    def see(self, step: Step) -> None:
        match step.call:
            case "acquire":
                self._acquire(step)
            case "finish":
                self._finish(step)
            case "back_off" if step.words[0] == "ok":
                self._resumes = max(self._resumes, step.now + int(step.given[0]["pause"]))
            case "abandon" | "recover" | "leave" if step.words[0] == "ok":
                gone = {key: cost for key, cost in self._open.items() if key[0] == step.given[0]["worker"]}
                self._over |= gone.keys()
                self._abandoned |= gone
                self._open = {key: cost for key, cost in self._open.items() if key not in gone}

    def _fall(self, now: int) -> None:
        self._level = max(0.0, self._level - (now - self._at) * RATE / PER)
        self._at = now

    def _acquire(self, step: Step) -> None:
        for item, answer in step.items():
            key, cost = (step.given[0]["worker"], item["number"]), float(item["cost"])
            if answer[0] != b"ok" or key in self._open:
                continue
            if key in self._over:
                raise Broken(f"call {key} may start again after its end")
            if step.now < self._resumes:
                raise Broken(f"call {key} may start {self._resumes - step.now} ms before the end of a back-off")
            self._fall(step.now)
            self._level += cost
            self._open[key] = cost
            if self._level > BURST + SLACK:
                raise Broken(f"call {key} may start at level {self._level:.3f}, above the burst of {BURST}")
            if len(self._open) > CALLS_AT_ONCE:
                raise Broken(f"{len(self._open)} calls are under way, at most {CALLS_AT_ONCE} may be")

    def _finish(self, step: Step) -> None:
        for item, answer in step.items():
            key = (step.given[0]["worker"], item["number"])
            if answer[0] in (b"ok", b"left", b"again"):
                self._over.add(key)
            calls = self._open if key in self._open else self._abandoned
            if answer[0] == b"ok" and key in calls:
                self._fall(step.now)
                reserved = calls.pop(key)
                if item["cost"]:
                    self._level = max(0.0, self._level + float(item["cost"]) - reserved)
