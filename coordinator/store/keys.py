"""The keys of a namespace. No other module builds a key.

All keys of a partition share the hash tag `{namespace:partition}`, so that a script touches one hash slot. generated_lua.py makes
the keys of the Lua scripts from these methods, so that each name is written in one place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coordinator.model.durability import replicas_of
from coordinator.model.names import name
from coordinator.model.run_id import partition_of

# The type of a key in the docstrings of Keys -> its name on the server.
TYPES = {"hash": "hash", "set": "set", "sorted set": "zset", "list": "list", "string": "string", "stream": "stream"}


class Tag(str):
    """The hash tag of a partition, as text, with the number of replicas that must confirm a write.

    Each call carries a tag, so the transport knows for how many replicas it waits.
    """

    __slots__ = ("replicas",)
    replicas: int

    def __new__(cls, text: str, replicas: int = 0) -> Tag:
        """Return a new tag with its number of replicas."""
        tag = super().__new__(cls, text)
        tag.replicas = replicas
        return tag


class Keys:
    """The keys of one partition.

    The docstring of each method has the type of the key, the scripts that write it, and when it is deleted or expires.
    """

    def __init__(self, namespace: str, partition: int, durability: str = "local") -> None:
        self.partition = partition
        self.at = Tag(f"{{{name(namespace, 'namespace')}:{partition}}}", replicas_of(durability))

    def namespace(self) -> str:
        """Return the key of a hash with the facts of the namespace: format, partitions, durability, birth and clock.

        Script create_namespace creates the key, and it is never deleted. The copy in partition 0 is authoritative.
        """
        return f"{self.at}:namespace"

    def run(self, id: str) -> str:
        """Return the key of a hash with the fields of a run (see RUN in formats.py).

        Scripts enqueue and fire create the key. It expires after the end of the run.
        """
        return f"{self.at}:run:{id}"

    def ckpt(self, id: str) -> str:
        """Return the key of a hash with a checkpoint: head, state, phase:… and unfinished.

        Script checkpoint creates the key. It is deleted when the run completes, and otherwise expires with the run.
        """
        return f"{self.at}:ckpt:{id}"

    def messages(self, id: str, generation: str) -> str:
        """Return the key of a hash with the chunks of messages by the index of their first message.

        Script checkpoint creates the key. It is deleted with the checkpoint, or when the transcript gets a new generation.
        """
        return f"{self.at}:messages:{id}:{generation}"

    def live(self) -> str:
        """Return the key of a set with the runs that have started and not ended.

        Script claim adds a run, and the script that ends the run removes it.
        """
        return f"{self.at}:live"

    def owned(self, worker: str) -> str:
        """Return the key of a set with the runs that a worker owns.

        Script claim adds a run, and the script that ends its attempt removes it.
        """
        return f"{self.at}:owned:{worker}"

    def workers(self) -> str:
        """Return the key of a sorted set with the deadline of each worker's lease, in ms.

        Script join adds a worker, and heartbeat renews its deadline. Scripts leave, recover and abandon remove the worker.
        """
        return f"{self.at}:workers"

    def worker(self, worker: str) -> str:
        """Return the key of a hash with the fields of a worker (see WORKER in formats.py).

        Script join creates the key. It expires 60 s after the worker is gone.
        """
        return f"{self.at}:worker:{worker}"

    def ready(self, route: str) -> str:
        """Return the key of a sorted set with the queued runs of a route, by score.

        Scripts enqueue, fire, due, release, recover and revive add a run, and claim removes it.
        """
        return f"{self.at}:ready:{route}"

    def suspect(self, route: str) -> str:
        """Return the key of a sorted set with the queued runs of a route whose next strike would be their last, by score.

        The scripts that requeue such a run add it, and claim removes it.
        """
        return f"{self.at}:suspect:{route}"

    def routes(self) -> str:
        """Return the key of a set with the routes that may have queued runs.

        Each script that queues a run adds its route. Script ring removes a route without queued runs.
        """
        return f"{self.at}:routes"

    def delayed(self) -> str:
        """Return the key of a sorted set with the delayed runs by the time at which they are due, in ms.

        Scripts enqueue, retry, release, reject and recover add a run, and due removes it.
        """
        return f"{self.at}:delayed"

    def waiting(self) -> str:
        """Return the key of a sorted set with the waiting runs by the time at which they are woken, in ms; FAR_FUTURE for never.

        Script suspend adds a run. A run is removed when it is woken or ends.
        """
        return f"{self.at}:waiting"

    def signals(self, id: str) -> str:
        """Return the key of a hash with the signals of a run: see SIGNALS in formats.py.

        Script send creates the key. It is deleted when the run completes, otherwise it expires with the run.
        """
        return f"{self.at}:signals:{id}"

    def signal_keys(self, id: str) -> str:
        """Return the key of a sorted set with the idempotency keys of a run's signals by the order of their sending.

        Script send adds an entry, and removes the oldest ones. The key expires like signal-operations.
        """
        return f"{self.at}:signal-keys:{id}"

    def signal_operations(self, id: str) -> str:
        """Return the key of a sorted set with the operation ids of sends by the time at which they were sent, in ms.

        Script send adds an entry, and removes old ones. The key expires one minute after a completion, otherwise with the run.
        """
        return f"{self.at}:signal-operations:{id}"

    def output(self, id: str) -> str:
        """Return the key of a stream with the events that a run's handler emitted: see lua/shared/output.lua.

        Scripts emit and checkpoint, and the scripts that end an attempt, create the key. It expires with the run.
        """
        return f"{self.at}:output:{id}"

    def reader(self, client: str) -> str:
        """Return the key of a stream with one entry, on which a client blocks together with the outputs that it reads.

        Script interrupt adds the entry. The key expires after a minute.
        """
        return f"{self.at}:reader:{client}"

    def joins(self, id: str) -> str:
        """Return the key of a hash with the numbers of joined children of each step of a run, as "<spawned> <ended>".

        A field is the base of the step: the id of its first child. Script join_children creates the key. It is deleted or expires
        together with the key results.
        """
        return f"{self.at}:joins:{id}"

    def results(self, id: str) -> str:
        """Return the key of a hash with the endings of a run's joined children: see RESULTS in formats.py.

        Each ending of a joined child adds to it. It is deleted when the parent completes, otherwise it expires with the parent.
        """
        return f"{self.at}:results:{id}"

    def effects(self, id: str) -> str:
        """Return the key of a hash with the effects of a run: see EFFECTS in formats.py.

        A save of a handler that uses `run.once` creates the key. It is deleted when the run completes, otherwise it expires with
        the run. A retry or a revive from the start keeps it.
        """
        return f"{self.at}:effects:{id}"

    def parting(self) -> str:
        """Return the key of a sorted set with steps whose children are to be cancelled, by the number of the next child.

        An entry is "<base> <spawned>": the id of the step's first child, and the number of its children. A script that ends a
        parent with open children adds the entry, and due removes it when the children are cancelled.
        """
        return f"{self.at}:parting"

    def deadlines(self) -> str:
        """Return the key of a sorted set with expire:<id> and cancel:<id> by the time at which the deadline passes, in ms.

        Scripts enqueue and cancel add an entry, and due removes it.
        """
        return f"{self.at}:deadlines"

    def aside(self) -> str:
        """Return the key of a sorted set with entries that could not be read, by the time at which they were set aside, in ms.

        Scripts claim, due and recover add an entry. Script trim limits their number, and removes them after a week.
        """
        return f"{self.at}:aside"

    def set_aside(self, name: str) -> str:
        """Return the key of a hash (or a value of another type) that had a wrong type or could not be read.

        The scripts of the doctor move the damaged key here. It expires after one week.
        """
        return f"{self.at}:set-aside:{name}"

    def ended(self, status: str) -> str:
        """Return the key of a sorted set with the ended runs of a status by the time at which their retention is over, in ms.

        The script that ends a run adds it, and trim removes it. Lists of runs read this key.
        """
        return f"{self.at}:ended:{status}"

    def children(self, id: str) -> str:
        """Return the key of a set with the runs of this partition that have this parent.

        Script enqueue adds a run, and trim_children removes it when it is gone. The key expires after two weeks; each new child and
        trim_children renew it.
        """
        return f"{self.at}:children:{id}"

    def parents(self) -> str:
        """Return the key of a sorted set with the runs that have children, by the time in ms of the next check of the children.

        Script enqueue adds a run, and trim_children removes it.
        """
        return f"{self.at}:parents"

    def felled(self, id: str) -> str:
        """Return the key of a string with the life of a cancelled run whose new children are refused; "-<life>" after a revive.

        Script block_children creates the key. It expires after the retention of the run, but not before five minutes and not after
        one day.
        """
        return f"{self.at}:felled:{id}"

    def bell(self, route: str) -> str:
        """Return the key of a list with one token while `ready` has runs. Workers block on it.

        The scripts that queue a run push the token. The key expires after one minute.
        """
        return f"{self.at}:bell:{route}"

    def suspect_bell(self, route: str) -> str:
        """Return the key of a list with one token while `suspect` has runs. Workers block on it.

        The scripts that queue a suspect push the token. The key expires after one minute.
        """
        return f"{self.at}:bell:suspect:{route}"

    def coordinator_bell(self) -> str:
        """Return the key of a list with one token if work is due earlier than expected. Coordinators block on it.

        The scripts that add an earlier entry push the token. The key expires after one minute.
        """
        return f"{self.at}:bell:coordinator"

    def inbox(self, worker: str) -> str:
        """Return the key of a list with hints for a worker or a supervisor: cancel, drain or roll.

        The scripts that store such a request push the hint; the request itself is in a hash. The key expires after one minute.
        """
        return f"{self.at}:inbox:{worker}"

    def waiters(self, id: str) -> str:
        """Return the key of a set with the clients that wait for the end of a run.

        Script wait adds a client. The key expires after 20 s, and each call of wait renews it.
        """
        return f"{self.at}:waiters:{id}"

    def wake(self, client: str) -> str:
        """Return the key of a list with the ended runs for which a client waits.

        The script that ends a run pushes its id. The length is limited, and the key expires after one minute.
        """
        return f"{self.at}:wake:{client}"

    def unreported(self) -> str:
        """Return the key of a list with endings that no worker reports: <id> <life> <attempts> <status> <ms> <route>.

        Script take_endings of a coordinator that exports metrics or reports traces creates and empties it. If the list exists, a
        script of a client, a supervisor or a coordinator that ends a run pushes an entry. The length is limited, and the key
        expires five to ten minutes after the last call.
        """
        return f"{self.at}:unreported"

    def untraced(self) -> str:
        """Return the key of a list with the entries of `unreported` that a coordinator without traces has taken.

        Script take_endings of a coordinator that reports traces creates and empties it. If the list exists, the same script of
        other coordinators pushes the entries. The length is limited, and the key expires five to ten minutes
        after the last call.
        """
        return f"{self.at}:untraced"

    def uncounted(self) -> str:
        """Return the key of a list with the entries of `unreported` that a coordinator without metrics has taken.

        Script take_endings of a coordinator that exports metrics creates and empties it. If the list exists, the same script of
        other coordinators pushes the entries. The length is limited, and the key expires five to ten minutes
        after the last call.
        """
        return f"{self.at}:uncounted"

    def once(self, kind: str, key: str) -> str:
        """Return the key of a string with the run id and the digest of the inputs for an idempotency key.

        Script enqueue creates the key. It expires after the end of the run.
        """
        return f"{self.at}:once:{kind}:{key}"

    def forgotten(self) -> str:
        """Return the key of a string with the newest id of a run that was removed before its retention was over.

        Scripts discard and cap write the key. It expires after the retention of that run.
        """
        return f"{self.at}:forgotten"

    def paused(self) -> str:
        """Return the key of a set with queue:<name> and kind:<name> of the paused queues and kinds.

        Script pause adds an entry, and unpause removes it.
        """
        return f"{self.at}:paused"

    def pauses(self, name: str) -> str:
        """Return the key of a string with the last pauses and unpauses of a queue or kind, newest first, as <operation>=<answer>.

        Scripts pause and unpause write the key, and recognise a repeated call by it. It expires after ten minutes.
        """
        return f"{self.at}:pauses:{name}"

    def limits(self) -> str:
        """Return the key of a hash with the limits of kinds and groups: handler:<kind>, kind:<kind> and group:<kind>:<group>.

        The same names with rate: before them have the rates of starts.

        It also has the budgets of handlers, for displays: budget:<kind>. Script join writes the limit and the budget of a handler,
        and script limit the others. While live workers publish different limits for a kind, the field mixed exists, and scripts
        leave, abandon and recover choose the limit again. It is never deleted.
        """
        return f"{self.at}:limits"

    def admitted(self, group: str) -> str:
        """Return the key of a set with the runs of a group that are ready, suspect or running. The group is <kind>:<name>.

        The script that queues a run adds it. The script that delays, suspends or ends the run removes it.
        """
        return f"{self.at}:admitted:{group}"

    def line(self, group: str) -> str:
        """Return the key of a sorted set with the queued runs of a group that wait for a place, by their own score.

        The script that queues a run adds it. The script that frees a place, and script sweep, remove it.
        """
        return f"{self.at}:line:{group}"

    def starting(self, group: str) -> str:
        """Return the key of a set with the runs of a group that were admitted under a rate of starts and wait for a worker.

        The script that admits a run adds it. Script claim, or the script that ends the run, removes it.
        """
        return f"{self.at}:starting:{group}"

    def pace(self, group: str) -> str:
        """Return the key of a string with the time in ms until which the starts of a group so far have used up its rate.

        Script claim writes it. It expires a minute after that time.
        """
        return f"{self.at}:pace:{group}"

    def paced(self) -> str:
        """Return the key of a sorted set with groups whose rate of starts is used up, by the time in ms of the next start.

        A script that can't admit a run because of the rate adds the group. Script due removes it.
        """
        return f"{self.at}:paced"

    def groups(self) -> str:
        """Return the key of a set with the groups that may have runs in their lines, as <kind>:<name>.

        The script that adds a run to a line adds its group. Script sweep removes a group whose line is empty.
        """
        return f"{self.at}:groups"

    def rates(self) -> str:
        """Return the key of a hash with the rates of external calls, by name: see lua/rates/rate.lua.

        Script rate writes it. It is never deleted.
        """
        return f"{self.at}:rates"

    def bucket(self, name: str) -> str:
        """Return the key of a hash that stores how much of a rate is used: see BUCKET in formats.py.

        Scripts acquire and finish create the key. It expires one minute after the level has fallen to 0 and any back-off has ended.
        """
        return f"{self.at}:bucket:{name}"

    def holders(self, name: str) -> str:
        """Return the key of a sorted set with the requests whose calls are under way, by the cost that they reserved.

        A request is <worker>-<number>. Script acquire adds it, and finish removes it. The scripts leave, abandon and recover remove
        the requests of a worker that is gone. The key expires after a week without a new call.
        """
        return f"{self.at}:holders:{name}"

    def turns(self, name: str) -> str:
        """Return the key of a sorted set with the requests that wait for a rate, by the cost of all requests that waited before.

        Script acquire adds and removes a request, and finish removes it. The scripts leave, abandon and recover remove the requests
        of a worker that is gone. The key expires a week after the last call of acquire.
        """
        return f"{self.at}:turns:{name}"

    def lock(self, lock: str) -> str:
        """Return the key of a string with the token of the holder of a lock.

        Script lock creates the key. It expires unless its holder renews it.
        """
        return f"{self.at}:lock:{lock}"

    def watch(self) -> str:
        """Return the key of a hash with the last check of all leases: at, hold_until, clamped and rest.

        `at` is the time of the check, `hold_until` the time at which a pause of recovery ends, and `clamped` the time at which
        deadlines were last shortened. `rest` is the time in ms from this check to the next one. Script judge creates the key, and
        it is never deleted.
        """
        return f"{self.at}:watch"

    def schedule(self, name: str) -> str:
        """Return the key of a hash with the fields of a schedule (see SCHEDULE in formats.py).

        Script schedule creates the key. It is deleted ten minutes after unschedule.
        """
        return f"{self.at}:schedule:{name}"

    def schedules(self) -> str:
        """Return the key of a sorted set with the schedules by the time at which a coordinator checks them next, in ms.

        Script schedule adds a schedule. The entry is removed with the schedule.
        """
        return f"{self.at}:schedules"

    def mark(self) -> str:
        """Return the key of a string with no content.

        Script confirm writes the key at the end of each trip that waits for replicas, because WAIT waits for the last write of its
        connection. The key expires after one minute.
        """
        return f"{self.at}:mark"

    def coordinators(self) -> str:
        """Return the key of a sorted set with the coordinators by the time at which they were last seen, in ms.

        Script judge adds a coordinator, and removes coordinators that were not seen for one minute.
        """
        return f"{self.at}:coordinators"

    def supervisors(self, fleet: str) -> str:
        """Return the key of a sorted set with the supervisors of a fleet by the time at which they were last seen, in ms.

        Script supervise adds a supervisor, in partition 0. The key expires after one minute.
        """
        return f"{self.at}:supervisors:{fleet}"

    def roll(self, fleet: str) -> str:
        """Return the key of a hash with the last roll of a fleet: roll, by, asked, at_once and part:<supervisor>.

        Script roll creates the key, in partition 0. It expires one hour after the last progress of the roll.
        """
        return f"{self.at}:roll:{fleet}"

    def record(self, id: str) -> str:
        """Return the key of a hash with a stand-alone checkpoint: head, meta, state, phase:…, owner, past and claim.

        Script record_save creates the key. It expires unless a save renews it.
        """
        return f"{self.at}:record:{id}"

    def record_messages(self, id: str, generation: str) -> str:
        """Return the key of a hash with the chunks of messages of a record by the index of their first message.

        Script record_save creates the key. It is deleted with the record, or when the transcript gets a new generation.
        """
        return f"{self.at}:record-messages:{id}:{generation}"

    def records(self) -> str:
        """Return the key of a sorted set with the runs that have a record, by the time at which the record expires, in ms.

        Script record_save adds a run, and removes expired ones. The key expires with its last record.
        """
        return f"{self.at}:records"

    def record_owners(self) -> str:
        """Return the key of a sorted set with the owners of records by the deadline of their lease, in ms.

        Script record_keep adds an owner, and removes expired ones. The key expires after five minutes, or after the longest lease.
        """
        return f"{self.at}:record-owners"

    def graph(self, owner: str, thread: str) -> str:
        """Return the key of a hash with the content of a thread of a graph: see lua/shared/graph.lua.

        Script graph_save creates the key. It is deleted with the thread, and expires with its owner or after its own TTL.
        """
        return f"{self.at}:graph:{owner}:{thread}"

    def graph_index(self, owner: str, thread: str) -> str:
        """Return the key of a sorted set with the names of a thread's checkpoints and writes: see lua/shared/graph.lua.

        Script graph_save creates the key. It is deleted or expires together with the key graph.
        """
        return f"{self.at}:graph-index:{owner}:{thread}"

    def graph_threads(self, owner: str) -> str:
        """Return the key of a sorted set with the ids of an owner's graph threads. The score is the expiry time of a thread, in ms.

        The score of a thread without a TTL is FAR_FUTURE. Script graph_save adds a thread, and graph_delete removes it. If the
        owner is a run, the key expires with the run.
        """
        return f"{self.at}:graph-threads:{owner}"

    def graph_run(self, run: str) -> str:
        """Return the key of a set with the threads in which a run of LangGraph has stored checkpoints.

        A graph that belongs to a run of this product does not have this key.

        Script graph_save adds a thread, and graph_delete removes it. The key is deleted or expires together with the key graph.
        """
        return f"{self.at}:graph-run:{run}"

    def session(self, id: str) -> str:
        """Return the key of a list with the items of a session of the OpenAI Agents SDK, the oldest first.

        Script session_add creates the key. It is deleted when the session is cleared, and expires after its own TTL.
        """
        return f"{self.at}:session:{id}"

    def session_operations(self, id: str) -> str:
        """Return the key of a hash with "<ms> <removed item>" for each change of a session, by the id of the operation.

        Scripts session_add and session_remove create the key. It expires one week after the last change.
        """
        return f"{self.at}:session-operations:{id}"


def type_of_key(method: Callable[..., str]) -> str:
    """Return the type of the key that a method of Keys builds, as the server names it: `zset`, for example.

    The method's docstring names the type.
    """
    words = (method.__doc__ or "").removeprefix("Return the key of a ")
    return next(name for start, name in TYPES.items() if words.startswith(start))


@dataclass(frozen=True, slots=True)
class Namespace:
    """The facts of a namespace, which are fixed when it is created.

    Attributes:
        name: The name.
        partitions: The number of partitions.
        durability: The durability level.
        birth: The birth mark, a random text.
    """

    name: str
    partitions: int = 1
    durability: str = "local"
    birth: str = ""

    def keys(self, partition: int) -> Keys:
        """Return the keys of the partition with this number."""
        return Keys(self.name, partition, self.durability)

    def keys_of(self, run_id: str) -> Keys:
        """Return the keys of the partition of a run."""
        return self.keys(partition_of(run_id, self.partitions))

    def everywhere(self) -> list[Keys]:
        """Return the keys of all partitions of the namespace."""
        return [self.keys(partition) for partition in range(self.partitions)]
