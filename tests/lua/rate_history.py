"""Histories of external calls under one rate, beside a model that replays the level in exact numbers."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from coordinator.model.policies.rates import encode_rate, parse_rate
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.plans import rates as rate_plans
from tests.lua.store import Store

NAME = "api"
EPSILON = 1e-6
RATES: list[tuple[str | None, int | None, int | None]] = [
    ("10/s", 10, None),
    ("7/s", 5, 2),
    ("3000000/s", 10, 3),
    ("100/min", 20, 1),
    (None, None, 2),
]
Choose = Callable[[Any], Any]


@dataclass(eq=False)
class Request:
    worker: str
    number: int
    cost: int
    stage: str = "asked"  # then waiting, open and over
    asks_at: float = 0.0  # when its worker asks again, because of the last answer or of a hint

    @property
    def member(self) -> str:
        return f"{self.worker}-{self.number}"


class RateHistory:
    """A store, the requests of its workers, and the model: `check` compares them, and `finish` lets every request start."""

    def __init__(self, url: str) -> None:
        self.store = Store(url, f"rates-{os.urandom(4).hex()}")
        self.workers: list[str] = []
        self.requests: list[Request] = []
        self.line: list[Request] = []  # the requests that wait, in order
        self.numbers: Counter[str] = Counter()
        self.operations = 0
        self.level, self.at = Fraction(0), self.store.now
        self.resumes = self.pause = 0
        self.speed, self.burst, self.at_once = Fraction(0), float("inf"), float("inf")
        self.join()
        self.join()
        self.set_rate(RATES[0])
        self.actions: list[Callable[[Choose], None]] = [
            self.ask, self.ask, self.ask, self.ask_again, self.ask_again, self.ask_again, self.end, self.end, self.end_again,
            self.late, self.back_off, self.step, self.step, self.jump, self.lose_worker, self.change_rate,
        ]  # fmt: skip

    def close(self) -> None:
        self.store.close()

    # -- the model

    def advance(self) -> None:
        """Move the model to the time of the server, as each call does that writes the bucket."""
        now = self.store.now
        self.level = max(Fraction(0), self.level - max(0, now - self.at) * self.speed)
        self.at = now
        self.resumes = min(self.resumes, now + self.pause)

    def open_calls(self) -> list[Request]:
        return [one for one in self.requests if one.stage == "open" and one.worker in self.workers]

    def may_start(self, request: Request) -> bool:
        before = self.line[: self.line.index(request)] if request in self.line else self.line
        need = self.level + sum(one.cost for one in before) + request.cost
        in_rate = not self.speed or need <= self.burst + EPSILON
        in_places = len(self.open_calls()) + len(before) < self.at_once
        return in_rate and in_places and self.resumes <= self.store.now

    def time_left(self, request: Request) -> float:
        """Return the ms until the first request of the line may start, as far as the rate and a back-off decide."""
        now = self.store.now
        level = max(Fraction(0), self.level - max(0, now - self.at) * self.speed)
        left = max(0, min(self.resumes, now + self.pause) - now)
        if self.speed:
            left = max(left, math.ceil((level + request.cost - Fraction(self.burst)) / self.speed))
        return left

    # -- actions

    def join(self) -> None:
        worker = f"w{len(self.numbers) + 1}"
        self.numbers[worker] = 0
        self.store.join(worker)
        self.workers.append(worker)

    def ask(self, choose: Choose) -> None:
        worker = choose(self.workers)
        self.numbers[worker] += 1
        request = Request(worker, self.numbers[worker], choose([0, 1, 1, 2, 5, 10]))
        self.requests.append(request)
        self.acquire(request)

    def ask_again(self, choose: Choose) -> None:
        if candidates := [*self.line, *self.open_calls()]:
            self.acquire(choose(candidates))

    def acquire(self, request: Request) -> None:
        if not (self.speed and request.cost > self.burst):
            self.advance()
        found = self.store.do(
            rate_plans.acquire(self.store.keys, request.worker, NAME, request.number, request.cost, self.store.at)
        )
        if self.speed and request.cost > self.burst:
            # Only a lower burst makes the cost of a request too large that has begun.
            assert found.word == "large", found
            if request in self.line:
                self.line.remove(request)
            if request.stage != "open":
                request.stage = "over"
                self.advance()
                assert self._finish(request, 0) == "again"  # a worker calls finish in any case
        elif request.stage == "open":
            assert found.word == "ok", "a repeated request gets the same answer"
        elif found.word == "ok":
            assert self.may_start(request), f"{request} started against the rate: level {float(self.level)}"
            if request in self.line:
                self.line.remove(request)
            request.stage = "open"
            self.level += request.cost if self.speed else 0
        else:
            assert found.word == "wait", found
            assert found.wait_ms >= 1
            first = request is self.line[0] if self.line else request not in self.line
            assert not (first and self.may_start(request)), f"{request} is first in line and may start"
            if request not in self.line:
                self.line.append(request)
                request.stage = "waiting"
            request.asks_at = self.store.now + found.wait_ms

    def end(self, choose: Choose) -> None:
        if candidates := [*self.open_calls(), *self.line]:
            self.finish_request(choose(candidates), choose([None, None, 0, 1, 15]))

    def finish_request(self, request: Request, cost: int | None) -> None:
        self.advance()
        answer = self._finish(request, cost)
        if request.stage == "open":
            assert answer == "ok"
            if cost is not None and self.speed:
                self.level = max(Fraction(0), self.level + cost - request.cost)
        else:
            assert answer == "left"
            self.line.remove(request)
        request.stage = "over"

    def _finish(self, request: Request, cost: int | None) -> str:
        return self.store.do(
            rate_plans.finish(self.store.keys, request.worker, NAME, request.number, cost, self.store.at)
        )

    def over(self) -> list[Request]:
        return [one for one in self.requests if one.stage == "over" and one.worker in self.workers]

    def end_again(self, choose: Choose) -> None:
        if over := self.over():
            self.advance()
            assert self._finish(choose(over), choose([None, 0, 15])) == "again"

    def late(self, choose: Choose) -> None:
        """Let an acquire or a back-off arrive after the end of its request."""
        if over := self.over():
            request = choose(over)
            keys, now = self.store.keys, self.store.at
            found = self.store.do(rate_plans.acquire(keys, request.worker, NAME, request.number, request.cost, now))
            assert found.word in ("old", "large"), found
            if found.word == "old":
                self.advance()
            assert self.store.do(rate_plans.back_off(keys, request.worker, NAME, request.number, 9999, now)) == "over"

    def back_off(self, choose: Choose) -> None:
        if calls := self.open_calls():
            request, pause = choose(calls), choose([1, 700, 5000])
            self.advance()
            assert (
                self.store.do(
                    rate_plans.back_off(self.store.keys, request.worker, NAME, request.number, pause, self.store.at)
                )
                == "ok"
            )
            if self.store.now + pause > self.resumes:
                self.resumes, self.pause = self.store.now + pause, pause

    def step(self, choose: Choose) -> None:
        self.store.later(choose([1, 50, 99, 1000, 4000]))

    def jump(self, choose: Choose) -> None:
        """Set the clock of the server."""
        self.store.later(choose([-3_600_000, -1000, -1, 3_600_000]))
        for request in self.line:
            request.asks_at = -math.inf  # the workers have clocks of their own

    def lose_worker(self, choose: Choose) -> None:
        worker = choose(self.workers)
        if choose([True, False]):
            self.store.leave(worker)
        else:
            self.store.do(coordinator_plans.abandon(self.store.keys, worker, now=self.store.at))
        self.workers.remove(worker)
        self.line = [one for one in self.line if one.worker != worker]
        self.join()

    def change_rate(self, choose: Choose) -> None:
        self.set_rate(choose(RATES))

    def set_rate(self, rate: tuple[str | None, int | None, int | None]) -> None:
        self.advance()
        self.operations += 1
        plan = rate_plans.set_rate(self.store.keys, NAME, encode_rate(*rate), f"o{self.operations}", self.store.at)
        self.store.do(plan)
        text, burst, at_once = rate
        amount, seconds = parse_rate(text) if text else (0, 1)
        self.speed = Fraction(amount, seconds * 1000)
        self.burst = float("inf") if burst is None else burst
        self.at_once = float("inf") if at_once is None else at_once

    # -- checks

    def members(self, key: str) -> set[str]:
        return {member.decode() for member in self.store.client.zrange(key, 0, -1)}

    def check(self) -> None:
        """Compare the server with the model."""
        keys = self.store.keys
        assert self.members(keys.holders(NAME)) == {one.member for one in self.open_calls()}
        assert self.members(keys.turns(NAME)) == {one.member for one in self.line}
        level, at = self.store.client.hmget(keys.bucket(NAME), "level", "at")
        if level is not None:
            assert int(at) == self.at
            assert abs(float(level) - self.level) < EPSILON * (1 + self.level)
        self.check_first()

    def check_first(self) -> None:
        """Check that the worker of the first request asks when the request may start, and not later."""
        for worker in self.workers:
            inbox = self.store.keys.inbox(worker)
            hints = {
                f"{worker}-{hint.decode().removeprefix('limit ')}" for hint in self.store.client.lrange(inbox, 0, -1)
            }
            self.store.client.delete(inbox)
            for request in self.line:
                if request.member in hints:
                    request.asks_at = self.store.now
        if self.line and len(self.open_calls()) < self.at_once:
            first = self.line[0]
            late = first.asks_at - max(self.store.now + self.time_left(first), self.store.now + 1)
            assert late <= 0, f"{first} asks {late} ms after the time at which it may start"

    def finish(self) -> None:
        """Let time pass and calls end. Every request that waits starts, in order."""
        if not self.at_once:
            self.set_rate(RATES[0])
        for _ in range(50 * (len(self.line) + 1)):
            for request in self.open_calls():
                self.finish_request(request, None)
            if not self.line:
                break
            self.acquire(self.line[0])
            if self.line:
                self.store.later(500)
        assert not self.line, "a request starves"
        self.check()
