"""Every key of a namespace, in one class: nobody else builds a key.

All keys of a partition share the hash tag `{namespace:partition}`, so that a script touches one slot. The Lua side gets its
keys from these methods (see script.py), so that there is one place for each name.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.model.durability import replicas_of
from coordinator.model.run import name, partition_of


class Tag(str):
    """The hash tag of a partition. It also says how many replicas must have a write before it counts: whoever carries a call there
    is told so by the call itself, and nobody can forget it."""

    __slots__ = ("replicas",)
    replicas: int

    def __new__(cls, text: str, replicas: int = 0) -> Tag:
        tag = super().__new__(cls, text)
        tag.replicas = replicas
        return tag


class Keys:
    """The keys of one partition. Beside each: its type, what it holds, who writes it, and when it ends."""

    def __init__(self, namespace: str, partition: int, durability: str = "local") -> None:
        self.partition = partition
        self.at = Tag(f"{{{name(namespace, 'namespace')}:{partition}}}", replicas_of(durability))

    def namespace(self) -> str:
        """hash: format, partitions, durability, birth, clock; by found. Never ends. Partition 0's is the authority."""
        return f"{self.at}:namespace"

    def run(self, id: str) -> str:
        """hash: spec (in pieces), status, route, counters, token, last, times, ending; by enqueue. TTL from the ending on."""
        return f"{self.at}:run:{id}"

    def ckpt(self, id: str) -> str:
        """hash: head, state, phase:…, unfinished; by checkpoint. Ends with the completion or with the run's TTL."""
        return f"{self.at}:ckpt:{id}"

    def messages(self, id: str, generation: str) -> str:
        """hash: index of a chunk's first message -> chunk; by checkpoint. Ends with the checkpoint or its generation."""
        return f"{self.at}:messages:{id}:{generation}"

    def live(self) -> str:
        """set: runs that have started and not ended; by claim. A member goes at its ending."""
        return f"{self.at}:live"

    def owned(self, worker: str) -> str:
        """set: runs that a worker holds; by claim. Empties."""
        return f"{self.at}:owned:{worker}"

    def workers(self) -> str:
        """zset: worker -> lease deadline (ms); by join, renewed by heartbeat. A member goes by leave, recover or abandon."""
        return f"{self.at}:workers"

    def worker(self, worker: str) -> str:
        """hash: host, pid, mark, fleet, routes, code, lease, slots, memory, claim, floor, drain, condemned; by join.
        A tombstone for 60 s."""
        return f"{self.at}:worker:{worker}"

    def ready(self, route: str) -> str:
        """zset: waiting runs by score; by enqueue, due, release, recover, revive. Empties."""
        return f"{self.at}:ready:{route}"

    def suspect(self, route: str) -> str:
        """zset: waiting runs whose next strike would be the last; as ready."""
        return f"{self.at}:suspect:{route}"

    def routes(self) -> str:
        """set: routes in which runs may wait; by whoever fills one. A member goes when a coordinator finds it empty."""
        return f"{self.at}:routes"

    def delayed(self) -> str:
        """zset: run -> due (ms); by enqueue, retry, release, reject, recover. Empties by due."""
        return f"{self.at}:delayed"

    def deadlines(self) -> str:
        """zset: expire:<id>, cancel:<id> -> ms; by enqueue and cancel, worked off by due."""
        return f"{self.at}:deadlines"

    def aside(self) -> str:
        """zset: entries that could not be read -> time (ms). Capped."""
        return f"{self.at}:aside"

    def set_aside(self, name: str) -> str:
        """hash: or any other type, what was found in the place of a key or could not be read; by doctor. TTL one week."""
        return f"{self.at}:set-aside:{name}"

    def ended(self, status: str) -> str:
        """zset: ended run -> when its retention is over (ms), for listing; trimmed by retention."""
        return f"{self.at}:ended:{status}"

    def children(self, id: str) -> str:
        """set: runs of this partition with this parent; by enqueue. TTL, renewed by each child."""
        return f"{self.at}:children:{id}"

    def felled(self, id: str) -> str:
        """string: life of a run below which no run is taken over, '-' before it when that life is over; by fell. TTL one day."""
        return f"{self.at}:felled:{id}"

    def bell(self, route: str) -> str:
        """list: a token where runs wait in ready. One token, TTL one minute."""
        return f"{self.at}:bell:{route}"

    def suspect_bell(self, route: str) -> str:
        """list: a token where runs wait in suspect. One token, TTL one minute."""
        return f"{self.at}:bell:suspect:{route}"

    def coordinator_bell(self) -> str:
        """list: a token where something is due earlier than a coordinator may think. One token, TTL one minute."""
        return f"{self.at}:bell:coordinator"

    def inbox(self, worker: str) -> str:
        """list: hints to look now (cancel, drain); the facts are fields. Capped, TTL one minute."""
        return f"{self.at}:inbox:{worker}"

    def waiters(self, id: str) -> str:
        """set: clients that wait for a run's ending; by wait. TTL, renewed by each wait."""
        return f"{self.at}:waiters:{id}"

    def wake(self, client: str) -> str:
        """list: runs that have ended, for one client; by the endings. Capped, TTL one minute."""
        return f"{self.at}:wake:{client}"

    def once(self, kind: str, key: str) -> str:
        """string: idempotency key -> run id and digest of its inputs; by enqueue. TTL from the ending on."""
        return f"{self.at}:once:{kind}:{key}"

    def paused(self) -> str:
        """set: queue:<name>, kind:<name>; by an operator."""
        return f"{self.at}:paused"

    def lock(self, lock: str) -> str:
        """string: a coordinator's token; PX."""
        return f"{self.at}:lock:{lock}"

    def watch(self) -> str:
        """hash: at (when leases were last judged), hold_until, clamped (when deadlines were); by judge. Never ends."""
        return f"{self.at}:watch"

    def schedule(self, name: str) -> str:
        """hash: generation, state, rules, run (route, spec, …), next, due, last, counts, why; by schedule. Ends by unschedule."""
        return f"{self.at}:schedule:{name}"

    def schedules(self) -> str:
        """zset: schedule -> when a coordinator looks at it next (ms); by schedule. A member goes with its schedule."""
        return f"{self.at}:schedules"

    def mark(self) -> str:
        """string: empty; by confirm, at the end of each trip that waits for replicas. TTL one minute."""
        return f"{self.at}:mark"

    def coordinators(self) -> str:
        """zset: coordinator -> last seen (ms); by judge, trimmed there."""
        return f"{self.at}:coordinators"

    def supervisors(self, fleet: str) -> str:
        """zset: supervisor of a fleet -> last seen (ms), in partition 0; by supervise, trimmed there. TTL one minute."""
        return f"{self.at}:supervisors:{fleet}"

    def roll(self, fleet: str) -> str:
        """hash: roll, by, asked, at_once, part:<supervisor>, in partition 0; by roll. TTL one hour, renewed while it goes on."""
        return f"{self.at}:roll:{fleet}"

    def record(self, id: str) -> str:
        """hash: head, meta, state, phase:…, owner, past, claim; by record_save. TTL, renewed by each save; a tombstone for 60 s."""
        return f"{self.at}:record:{id}"

    def record_messages(self, id: str, generation: str) -> str:
        """hash: index of a chunk's first message -> chunk; by record_save. Ends with the record or its generation."""
        return f"{self.at}:record-messages:{id}:{generation}"

    def records(self) -> str:
        """zset: run with a record -> when its TTL is over (ms); by record_save, trimmed there. A member goes with its record."""
        return f"{self.at}:records"

    def record_owners(self) -> str:
        """zset: owner of records -> lease deadline (ms); by record_keep, trimmed there. TTL one day."""
        return f"{self.at}:record-owners"


@dataclass(frozen=True, slots=True)
class Namespace:
    """The facts of a namespace, fixed when it was founded."""

    name: str
    partitions: int = 1
    durability: str = "local"
    birth: str = ""

    def keys(self, partition: int) -> Keys:
        return Keys(self.name, partition, self.durability)

    def keys_of(self, run_id: str) -> Keys:
        return self.keys(partition_of(run_id, self.partitions))

    def everywhere(self) -> list[Keys]:
        return [self.keys(partition) for partition in range(self.partitions)]
