"""Every script with random arguments: it answers with one of its words, or raises an error and has written nothing.

The store contains runs in every status, so that about half of the calls pass the guards. Before and after an error, the
server's digest of all its data is compared.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import redis

from coordinator.model.run_id import child_id
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans import fleets as fleet_plans
from coordinator.store.plans import trees as tree_plans
from coordinator.store.plans.workers import Claimed
from coordinator.store.script import Script
from coordinator.store.scripts import SCRIPTS
from tests.lua.store import ROUTES, Store, delta

ODD = (
    "",
    "0",
    "1",
    "-1",
    "+",
    "-",
    "+5",
    "1.5",
    "1e3",
    "1e400",
    "nan",
    "inf",
    "-inf",
    "9007199254740993",
    "9" * 20,
    "-" + "9" * 400,
    "9" * 400,
    "0x10",
    " 1",
    "1 ",
    "x",
    "\0",
    "ü",
    "%d",
    "%",
    "a b",
    "\n",
    ":",
    "@",
    "k@",
    "k@x",
    "default:k@1",
    "default:@1",
    ":k@1",
    "true",
    "stopping",
    "x" * 20_000,
)

BASE, OTHER = "01hf7wz8001hf7wz800z-00", "01hf7wz8001hf7wz9000-00"
RECEIVED = attempt_plans.netstrings([b"received:t", b"1"])


class Scene:
    """A store with something in every key family. It is created again after many changes."""

    def __init__(self, url: str) -> None:
        self._url, self._number = url, 0
        self._store: Store | None = None
        self.good: list[str | bytes] = []
        self.fitting: dict[str, list[str | bytes]] = {}
        self.owned: list[tuple[str, str]] = []

    @property
    def store(self) -> Store:
        assert self._store is not None
        return self._store

    def begin(self) -> None:
        self.close()
        self._number += 1
        store = self._store = Store(self._url, f"fuzz{self._number}")
        store.client.execute_command(
            "DEBUG", "SET-ACTIVE-EXPIRE", "0"
        )  # Otherwise an expired key would look like a write.
        running = store.running("w1")
        store.save(running, delta(1, count=2, state=b"s"))
        ended = store.running("w2")
        store.fail(ended, b"e", delta(1, count=1).wire())
        completed = store.running("w2", once="key", digest="d")
        store.complete(completed)
        queued, delayed = store.enqueue(), store.enqueue(due="+60000", expires="90000")
        watched = store.running("w3", once="watched", digest="d")
        store.extend(watched)
        store.kill(watched)
        told = store.running("w2")
        store.retry(told)
        waiting, deaf = store.running("w2"), store.running("w2")
        store.send(waiting.id, "other", operation="s1", key="k")
        store.suspend(waiting, delta(1, more=RECEIVED).wire(), store.now + 1000, t=0)
        store.send(running.id, "t", operation="s2")
        store.suspend(deaf, t=0)
        store.client.hset(store.keys.run(deaf.id), "wait", "no condition")
        parent, joining = store.running("w2"), store.running("w2")
        child = self._with_children(parent, joining)
        store.do(fleet_plans.supervise(store.keys, "default", "s1", now=store.at))
        store.do(fleet_plans.request_roll(store.keys, "default", "roll1", at_once=1, by="host:1", now=store.at))
        store.do(fleet_plans.drain(store.keys, "w3", now=store.at))
        store.do(tree_plans.block_children(store.ns, [tree_plans.CancelledNode(told.id, 1)]))
        store.judge()
        store.lock("recovery", "t1")
        owned = (running, watched, told, waiting, completed, parent, parent, joining, child)
        self.owned = [(run.id, run.token) for run in owned]
        self.fitting = {
            "condition": [
                "- s:t:0",
                f"{store.now + 500} s:t:1 s:other:0",
                f"{store.now - 1}",
                "- s:t:x",
                "1 s:",
                f"- c:{BASE}:2",
                f"- c:{BASE}:x",
            ],
            "deadline": ["", f"{store.now + 500}", f"{store.now}"],
            "timeout": ["", "0", "1000"],
            "jitter": ["0.5"],
            "base": [BASE, OTHER, child_id(BASE, 500), ""],
            "old": ["", BASE, OTHER],
            "left": [BASE, OTHER],
            "count": ["0", "3", "5"],
            "by": ["index", "order"],
            "start": ["0", "1", "2"],
            "room": ["0", "1000"],
            "parent": [
                "",
                parent.id,
                f"{parent.id} 1 {BASE} 2",
                f"{joining.id} 1 {OTHER} 0",
                f"{parent.id} 2 {BASE} 1",
            ],
            "topic": ["t", "other", "new"],
            "received": ["0", "1", "7"],
            "delta": ["", delta(2, base=2, more=RECEIVED).wire(), delta(2, base=2, more=b"3:no").wire()],
        }
        self.good = [
            running.id,
            running.token,
            ended.id,
            ended.token,
            completed.id,
            completed.token,
            queued,
            delayed,
            watched.id,
            watched.token,
            told.id,
            told.token,
            waiting.id,
            waiting.token,
            deaf.id,
            parent.id,
            parent.token,
            joining.id,
            child.id,
            child.token,
            BASE,
            OTHER,
            f"- c:{BASE}:2",
            f"{parent.id} 1 {BASE} 2",
            "t",
            "other",
            "s1",
            "k",
            "- s:t:0",
            f"{store.now + 500} s:t:1 s:other:0",
            f"{store.now - 1}",
            delta(2, base=2, more=RECEIVED).wire(),
            "w1",
            "w2",
            "w3",
            "w9",
            "default",
            "s1",
            "roll1",
            "waiting",
            "going 1 2",
            *ROUTES,
            store.at,
            "b1",
            "recovery",
            "t1",
            "key",
            "d",
            "15000",
            delta(2, base=2, count=1).wire(),
            delta(1).wire(),
            delta(9, acked=7, base=5, count=1).wire(),
            b"\x80",
            "lost",
            "stray",
            "queued",
            "failed",
            "ready",
            "run",
            "hash",
        ]

    def _with_children(self, parent: Claimed, joining: Claimed) -> Claimed:
        """Give children to two parents, of which one waits for them. Return a child that is running."""
        store = self.store
        for run, base in ((parent, BASE), (joining, OTHER)):
            store.join_children(run, base, 3)
            for index in range(2):
                store.child(run, base, index)
        store.suspend(joining, children={OTHER: 2})
        store.join("w3")
        claimed = {run.id: run for run in store.claim("w3", want=100)[1]}
        store.complete(claimed[child_id(BASE, 0)], b"r")
        store.client.zadd(store.keys.parting(), {f"{child_id(BASE, 500)} 2": 0})
        return claimed[child_id(OTHER, 0)]

    def close(self) -> None:
        if self._store is not None:
            self._store.close()


def arguments(dice: random.Random, script: Script, good: Sequence[str | bytes]) -> list[str | bytes]:
    """Return mostly the right number of arguments, each of them valid, odd or noise."""
    items = dice.choice([0, 1, 1, 2, 3]) if script.item_fields else 0
    count = len(script.arguments) + items * len(script.item_fields)
    if dice.random() < 0.1:
        count = max(0, count + dice.choice([-2, -1, 1, 2]))
    share = dice.choice([0.5, 0.9])
    found: list[str | bytes] = []
    for _ in range(count):
        if dice.random() < share:
            found.append(dice.choice(good))
        else:
            odd: list[str | bytes] = [*ODD, dice.randbytes(8), dice.randbytes(300)]
            found.append(dice.choice(odd))
    return found


def _fit(dice: random.Random, scene: Scene, names: Sequence[str], given: list[str | bytes]) -> None:
    """Let most arguments fit their names, so that the call passes its guards."""
    id, token = dice.choice(scene.owned)
    choices: dict[str, list[str | bytes]] = {**scene.fitting, "id": [id], "token": [token]}
    for index, name in enumerate(names):
        fitting = choices.get(name)
        if fitting and dice.random() < 0.9:
            given[index] = dice.choice(fitting)


def bad(scene: Scene, seed: int) -> str:
    """Return what is wrong with the effect of one call, or an empty string."""
    dice = random.Random(seed)
    if seed % 50 == 0:
        scene.begin()
    script = dice.choice(SCRIPTS)
    client: Any = scene.store.client
    given = arguments(dice, script, scene.good)
    if "now" in script.arguments and script.arguments.index("now") < len(given) and dice.random() < 0.8:
        given[script.arguments.index("now")] = scene.store.at
    if len(given) == len(script.arguments) + len(script.item_fields) and dice.random() < 0.5:
        _fit(dice, scene, [*script.arguments, *script.item_fields], given)
    before = client.execute_command("DEBUG", "DIGEST")
    try:
        reply = client.eval(script.text, 1, scene.store.keys.at, *given)
    except redis.ResponseError as error:
        if client.execute_command("DEBUG", "DIGEST") != before:
            return f"{script.name} wrote and raised {str(error)[:200]}, given {[str(part)[:60] for part in given]}"
        return ""
    if unknown := _words(script, reply) - set(script.head.get("Answers", ())):
        return f"{script.name} answered {unknown}, given {[str(part)[:60] for part in given]}"
    return ""


def _words(script: Script, reply: Any) -> set[str]:
    parts = reply if script.merges and isinstance(reply, list) else [reply]
    heads = [part[0] if isinstance(part, list) and part else part for part in parts]
    return {head.decode(errors="replace") for head in heads if isinstance(head, bytes)}
