"""The laws of joined children: each ending reaches the parent once, and no wake-up of a parent is lost."""

from __future__ import annotations

from collections import defaultdict

from coordinator.model.run import ENDED, Status
from tests.faults.simulation.laws.step import Broken, Step

LONGEST_MS = 30_000  # how long a parent may wait for a coordinator after enough of its children have ended


class Children:
    """The children of all runs of a partition, according to the executed calls."""

    def __init__(self) -> None:
        self._joined: dict[str, tuple[str, str]] = {}  # child -> parent and base
        self._of_step: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)  # parent and base -> index -> child
        self._ended: dict[str, Status] = {}
        self._collected: dict[tuple[str, str, str], tuple[str, bytes]] = {}
        self._order: dict[tuple[str, str, int], str] = {}
        self._blocked: dict[str, int] = {}  # parent -> its life, whose tree was cancelled
        self._ripe: dict[str, int] = {}  # waiting parent -> since when enough children have ended

    def see(self, step: Step) -> None:
        for child in self._joined:
            run = step.after[child]
            if run is not None and run.status in ENDED:
                self._ended.setdefault(child, run.status)
        match step.call:
            case "enqueue":
                self._enqueue(step)
            case "collect":
                self._collect(step)
            case "block_children" if step.given[0]["again"] != "1":
                self._blocked[step.given[0]["id"]] = int(step.given[0]["life"])
        if self._joined:
            self._look_for_ripe(step)

    def _enqueue(self, step: Step) -> None:
        for item in step.given[1]:
            parent, _, rest = item["parent"].partition(" ")
            if not parent or step.before.get(item["id"]) is not None or step.after.get(item["id"]) is None:
                continue
            above = step.before.get(parent)
            if above is not None and self._blocked.get(parent) == above.counters.life:
                raise Broken(f"child {item['id']} was created although the tree of run {parent} was cancelled")
            if not rest:
                continue
            life, base, index = rest.split()
            if above is None or above.status in ENDED or above.counters.life != int(life):
                raise Broken(f"child {item['id']} was created for life {life} of run {parent}, which is {above}")
            self._joined[item["id"]] = (parent, base)
            self._of_step[parent, base][index] = item["id"]

    def _collect(self, step: Step) -> None:
        if step.words[0] != "ok":
            return
        id, base, by = (step.given[0][name] for name in ("id", "base", "by"))
        spawned, ended, rows = int(step.reply[1]), int(step.reply[2]), step.reply[3]
        children = self._of_step[id, base]
        known = sum(child in self._ended for child in children.values())
        if not known <= ended <= spawned:
            raise Broken(f"{ended} of {spawned} children of step {base} count as ended for run {id}, but {known} have")
        for place, (index, status, payload) in enumerate(zip(rows[::3], rows[1::3], rows[2::3], strict=True)):
            number, ending = index.decode(), (status.decode(), payload)
            child = children.get(number)
            if child is not None and self._ended.get(child) != ending[0]:
                raise Broken(f"child {child} of run {id} was collected as {ending[0]}, but is {self._ended.get(child)}")
            if self._collected.setdefault((id, base, number), ending) != ending:
                raise Broken(f"the ending of child {number} of step {base} of run {id} has changed")
            order = int(step.given[0]["start"]) + place
            if by == "order" and self._order.setdefault((id, base, order), number) != number:
                raise Broken(f"child {number} of step {base} of run {id} has the place {order} of another child")

    def _look_for_ripe(self, step: Step) -> None:
        ripe = set()
        for id, base in self._of_step:
            run = step.after.get(id)
            for part in run.wait.split()[2:] if run is not None and run.status is Status.WAITING else ():
                what, where, need = part.split(":")
                ended = sum(child in self._ended for child in self._of_step[id, base].values())
                if what == "c" and where == base and ended >= int(need):
                    ripe.add(id)
        self._ripe = {id: self._ripe.get(id, step.now) for id in ripe}

    def check_wake_ups(self, now: int, calm_since: int) -> None:
        """Demand that no parent waits for long after enough of its children have ended. Called after the faults."""
        for id, since in self._ripe.items():
            if now - max(since, calm_since) > LONGEST_MS:
                raise Broken(f"run {id} still waits for its children, of which enough ended {now - since} ms ago")
