"""The keys of a namespace. No other module builds a key.

All keys of a partition share the hash tag `{namespace:partition}`, so that a script touches one hash slot. generated_lua.py makes
the keys of the Lua scripts from these methods, so that each name is written in one place.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.model.durability import replicas_of
from coordinator.model.names import name
from coordinator.model.run_id import partition_of


class Tag(str):
    """The hash tag of a partition, with the number of replicas that must confirm a write.

    Each call has a tag, so that the transport always knows how many replicas to wait for.
    """

    __slots__ = ("replicas",)
    replicas: int

    def __new__(cls, text: str, replicas: int = 0) -> Tag:
        """Create a tag with its number of replicas."""
        tag = super().__new__(cls, text)
        tag.replicas = replicas
        return tag


class Keys:
    """The keys of one partition. Each docstring says the type, the content, the script that creates the key, and when it ends."""

    def __init__(self, namespace: str, partition: int, durability: str = "local") -> None:
        self.partition = partition
        self.at = Tag(f"{{{name(namespace, 'namespace')}:{partition}}}", replicas_of(durability))

    def namespace(self) -> str:
        """hash: format, partitions, durability, birth, clock; by create_namespace. Never ends. Partition 0 is authoritative."""
        return f"{self.at}:namespace"

    def run(self, id: str) -> str:
        """hash: see RUN in formats.py; by enqueue or fire. Expires after the end of the run."""
        return f"{self.at}:run:{id}"

    def ckpt(self, id: str) -> str:
        """hash: head, state, phase:…, unfinished; by checkpoint. Deleted when the run completes, otherwise expires with it."""
        return f"{self.at}:ckpt:{id}"

    def messages(self, id: str, generation: str) -> str:
        """hash: index of a chunk's first message -> chunk; by checkpoint. Deleted with the checkpoint or a new generation."""
        return f"{self.at}:messages:{id}:{generation}"

    def live(self) -> str:
        """set: runs that have started and not ended; by claim. A run is removed when it ends."""
        return f"{self.at}:live"

    def owned(self, worker: str) -> str:
        """set: runs that a worker owns; by claim. A run is removed when its attempt ends."""
        return f"{self.at}:owned:{worker}"

    def workers(self) -> str:
        """zset: worker -> deadline of its lease (ms); by join, renewed by heartbeat. Removed by leave, recover or abandon."""
        return f"{self.at}:workers"

    def worker(self, worker: str) -> str:
        """hash: see WORKER in formats.py; by join. Expires 60 s after the worker is gone."""
        return f"{self.at}:worker:{worker}"

    def ready(self, route: str) -> str:
        """zset: queued runs by score; by enqueue, fire, due, release, recover, revive. A run is removed when it is claimed."""
        return f"{self.at}:ready:{route}"

    def suspect(self, route: str) -> str:
        """zset: queued runs whose next strike would be the last; otherwise like ready."""
        return f"{self.at}:suspect:{route}"

    def routes(self) -> str:
        """set: routes in which runs may wait; by each script that queues a run. Removed by ring when no run waits there."""
        return f"{self.at}:routes"

    def delayed(self) -> str:
        """zset: run -> when it is due (ms); by enqueue, retry, release, reject, recover. Removed by due."""
        return f"{self.at}:delayed"

    def waiting(self) -> str:
        """zset: waiting run -> when it is woken (ms), or FAR_FUTURE; by suspend. Removed when the run is woken or ends."""
        return f"{self.at}:waiting"

    def signals(self, id: str) -> str:
        """hash: see SIGNALS in formats.py; by send. Deleted when the run completes, otherwise expires with it."""
        return f"{self.at}:signals:{id}"

    def signal_keys(self, id: str) -> str:
        """zset: idempotency key of a signal -> order of its sending; by send. Limited in number, ends like signal-operations."""
        return f"{self.at}:signal-keys:{id}"

    def signal_operations(self, id: str) -> str:
        """zset: operation id of a send -> when it was sent (ms); by send. Trimmed by send.

        Expires one minute after a completion, otherwise with the run.
        """
        return f"{self.at}:signal-operations:{id}"

    def joins(self, id: str) -> str:
        """hash: base of a step -> "<spawned> <ended>": its joined children; by join_children. Ends like results."""
        return f"{self.at}:joins:{id}"

    def results(self, id: str) -> str:
        """hash: see RESULTS in formats.py; by each ending of a joined child.

        Deleted when the parent completes or lets the step go, otherwise expires with the parent.
        """
        return f"{self.at}:results:{id}"

    def parting(self) -> str:
        """zset: "<base> <spawned>" -> index of the first child that was not cancelled yet; by each ending of a parent.

        An entry is removed by due, when the children that the parent has let go are cancelled.
        """
        return f"{self.at}:parting"

    def deadlines(self) -> str:
        """zset: expire:<id> or cancel:<id> -> ms; by enqueue and cancel. Removed by due."""
        return f"{self.at}:deadlines"

    def aside(self) -> str:
        """zset: entries that could not be read -> time (ms); by claim, due and recover. Limited in number, trimmed after a week."""
        return f"{self.at}:aside"

    def set_aside(self, name: str) -> str:
        """hash: or another type: a key that had a wrong type or could not be read; moved here by doctor. Expires after one week."""
        return f"{self.at}:set-aside:{name}"

    def ended(self, status: str) -> str:
        """zset: ended run -> when its retention is over (ms), for listing; by each ending. Trimmed by trim."""
        return f"{self.at}:ended:{status}"

    def children(self, id: str) -> str:
        """set: runs of this partition with this parent; by enqueue. A run is removed by trim_children when it is gone.

        Expires after two weeks, renewed by each child and by trim_children.
        """
        return f"{self.at}:children:{id}"

    def parents(self) -> str:
        """zset: run with children in this partition -> when trim_children looks at them next (ms); by enqueue. Removed there."""
        return f"{self.at}:parents"

    def felled(self, id: str) -> str:
        """string: life of a run whose new children are refused, with '-' in front if it was revived from it; by block_children.

        Expires after the retention of the run, but not before five minutes and not after one day.
        """
        return f"{self.at}:felled:{id}"

    def bell(self, route: str) -> str:
        """list: one token while runs wait in ready; workers block on it. Expires after one minute."""
        return f"{self.at}:bell:{route}"

    def suspect_bell(self, route: str) -> str:
        """list: one token while runs wait in suspect; workers block on it. Expires after one minute."""
        return f"{self.at}:bell:suspect:{route}"

    def coordinator_bell(self) -> str:
        """list: one token if something is due earlier than the coordinators expect; they block on it. Expires after one minute."""
        return f"{self.at}:bell:coordinator"

    def inbox(self, worker: str) -> str:
        """list: hints for a worker or supervisor (cancel, drain, roll); the facts are in hashes. Expires after one minute."""
        return f"{self.at}:inbox:{worker}"

    def waiters(self, id: str) -> str:
        """set: clients that wait for the end of a run; by wait. Expires after 20 s, renewed by each wait."""
        return f"{self.at}:waiters:{id}"

    def wake(self, client: str) -> str:
        """list: ended runs for which a client waits; by each ending. Limited, expires after one minute."""
        return f"{self.at}:wake:{client}"

    def once(self, kind: str, key: str) -> str:
        """string: run id and digest of the inputs for an idempotency key; by enqueue. Expires after the end of the run."""
        return f"{self.at}:once:{kind}:{key}"

    def paused(self) -> str:
        """set: queue:<name> or kind:<name>; by pause. Removed by unpause."""
        return f"{self.at}:paused"

    def lock(self, lock: str) -> str:
        """string: the token of the holder; by lock. Expires, renewed by its holder."""
        return f"{self.at}:lock:{lock}"

    def watch(self) -> str:
        """hash: at (when leases were last judged), hold_until, clamped (when deadlines were last clamped); by judge. Never ends."""
        return f"{self.at}:watch"

    def schedule(self, name: str) -> str:
        """hash: see SCHEDULE in formats.py; by schedule. Deleted ten minutes after unschedule."""
        return f"{self.at}:schedule:{name}"

    def schedules(self) -> str:
        """zset: schedule -> when a coordinator looks at it next (ms); by schedule. Removed with the schedule."""
        return f"{self.at}:schedules"

    def mark(self) -> str:
        """string: empty; by confirm, at the end of each trip that waits for replicas. Expires after one minute."""
        return f"{self.at}:mark"

    def coordinators(self) -> str:
        """zset: coordinator -> when it was last seen (ms); by judge, trimmed after one minute."""
        return f"{self.at}:coordinators"

    def supervisors(self, fleet: str) -> str:
        """zset: supervisor of a fleet -> when it was last seen (ms); by supervise, in partition 0. Expires after one minute."""
        return f"{self.at}:supervisors:{fleet}"

    def roll(self, fleet: str) -> str:
        """hash: roll, by, asked, at_once, part:<supervisor>; by roll, in partition 0. Expires one hour after its last progress."""
        return f"{self.at}:roll:{fleet}"

    def record(self, id: str) -> str:
        """hash: head, meta, state, phase:…, owner, past, claim; by record_save. Expires, renewed by each save."""
        return f"{self.at}:record:{id}"

    def record_messages(self, id: str, generation: str) -> str:
        """hash: index of a chunk's first message -> chunk; by record_save. Deleted with the record or a new generation."""
        return f"{self.at}:record-messages:{id}:{generation}"

    def records(self) -> str:
        """zset: run with a record -> when the record expires (ms); by record_save, trimmed there. Expires with its last record."""
        return f"{self.at}:records"

    def record_owners(self) -> str:
        """zset: owner of records -> deadline of its lease (ms); by record_keep, trimmed there.

        Expires after five minutes, or after the longest lease.
        """
        return f"{self.at}:record-owners"


@dataclass(frozen=True, slots=True)
class Namespace:
    """The facts of a namespace, which are fixed when it is created."""

    name: str
    partitions: int = 1
    durability: str = "local"
    birth: str = ""

    def keys(self, partition: int) -> Keys:
        """Return the keys of a partition."""
        return Keys(self.name, partition, self.durability)

    def keys_of(self, run_id: str) -> Keys:
        """Return the keys of the partition of a run."""
        return self.keys(partition_of(run_id, self.partitions))

    def everywhere(self) -> list[Keys]:
        """Return the keys of every partition."""
        return [self.keys(partition) for partition in range(self.partitions)]
