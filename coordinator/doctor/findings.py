"""One fault in a namespace, and the sentence that describes it. This module does no I/O.

The scripts answer with one word for each fault; this module turns the words into sentences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Subject = Literal["run", "entry", "key", "type"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault in a namespace.

    Attributes:
        subject: The damaged thing: a run, an entry of a collection, a key, or the type of a key.
        partition: The number of the partition.
        what: The id of the run, the member of the collection, or the name of the key.
        fault: The word with which the script names the fault. For the subject "type", the type that the key should have.
        detail: The detail that the script gives with the fault.
        where: The collection that has the entry, or the family of the key.
        name: The rest of the collection's name, if it has one.
        outcome: The word with which the script names the result of the repair; empty without a repair.
    """

    subject: Subject
    partition: int
    what: str
    fault: str
    detail: str = ""
    where: str = ""
    name: str = ""
    outcome: str = ""

    @property
    def repaired(self) -> bool:
        """Return True if the fault was repaired."""
        return self.outcome in ("repaired", "kept")

    @property
    def sentence(self) -> str:
        """The sentence that describes the fault."""
        match self.subject:
            case "run":
                return f"run {self.what} {_describe_run(self.fault, self.detail)}"
            case "entry":
                return _describe_entry(self)
            case "key":
                return _describe_key(self)
            case "type":
                return (
                    f"key {self._key!r} is a {self.detail} and should be a {self.fault}: every call that needs it fails"
                    + (_LOST_EFFECTS if self._key.startswith("effects:") else "")
                )

    @property
    def remedy(self) -> str:
        """The text that describes the result of the repair. It is empty if no repair was tried."""
        match self.outcome:
            case "repaired":
                return "repaired"
            case "kept":
                return f"moved to 'set-aside:{self._key}', where it is kept for a week"
            case "blocked":
                return "not repaired: another fault must be repaired first; run the command again"
            case "changed":
                return "changed while it was examined; will be examined again"
            case _:
                return ""

    @property
    def _key(self) -> str:
        match self.subject:
            case "run":
                return f"run:{self.what}"
            case "key":
                return f"{self.where}:{self.what}"
            case _:
                return self.what


_LOST_EFFECTS = (
    ". A repair does not restore the effects: find out which took place, then revive the run with --forget-effects"
)
_COLLECTION_NAMES = {
    "line": "the line of its group",
    "ready": "its ready queue",
    "suspect": "the queue of suspects",
    "delayed": "the list of delayed runs",
    "waiting": "the list of waiting runs",
}


_FIELD_NAMES = {"b": "spending", "j": "a parent that waits for it", "l": "a group"}


def _describe_run(fault: str, detail: str) -> str:
    match fault:
        case "unreadable":
            what, _, value = detail.partition(" ")
            verb = "are" if what == "counters" else "is"
            return f"can't be read: its {what} {verb} " + (f"not valid ({value[:80]!r})" if value else "missing")
        case "lineless":
            status = detail if detail in ("delayed", "waiting") else "queued"
            return f"is {status}, but not in {_COLLECTION_NAMES[detail]}: it would wait forever"
        case "twice":
            return f"is also in {_COLLECTION_NAMES.get(detail, detail)}, where it does not belong"
        case "aimless":
            return "is waiting, but what it waits for is " + (f"not valid ({detail[:80]!r})" if detail else "missing")
        case "unwoken":
            what, _, topic = detail.partition(" ")
            return f"is still waiting, although {what} {topic!r} has arrived"
        case "mistimed":
            return f"is waiting, but {_COLLECTION_NAMES['waiting']} has another time for the end of its wait"
        case "unrouted":
            return f"waits in the ready queue of route {detail!r}, whose bell no coordinator rings"
        case "unswept":
            return f"waits in the line of group {_group(detail)}, which no coordinator looks at"
        case "unadmitted":
            return f"is running, but has no place in group {_group(detail)}"
        case "admitted":
            return f"is not queued or running, but still has a place in group {_group(detail)}"
        case "tokenless":
            return "is running, but its owner can't be read"
        case "ownerless":
            return f"is running on worker {detail}, which has no lease: no coordinator would recover it"
        case "unowned":
            return f"is running on worker {detail}, but is not among the runs that this worker owns"
        case "unlive":
            return "is running, but not in the set of live runs"
        case "held":
            return f"is not running, but is still among the runs that worker {detail} owns"
        case "timeless":
            what = "its requested cancel" if detail == "cancel" else "its expiry"
            return f"has no deadline for {what}"
        case "mortal":
            return f"has not ended, but its {_part(detail)} has a TTL and would vanish"
        case "endless":
            return f"has ended, but its {_part(detail)} has no TTL and would stay forever"
        case "live":
            return "has ended, but is still in the set of live runs"
        case "unlisted":
            return f"has ended, but is not in the list of {detail} runs"
        case "untold":
            return f"has ended, but its parent {detail} still waits for its ending"
        case "misspent":
            what = f"is not valid ({detail!r})" if detail else "is missing"
            return f"has a record of its spending that {what}, so that its budget does not count all of it"
        case "unnoted":
            fields = " and ".join(_FIELD_NAMES[letter] for letter in detail if letter in _FIELD_NAMES)
            return f"has {fields}, but its hash does not note it: scripts would ignore it"
        case _:
            return f"is damaged: {fault} {detail}"


def _group(detail: str) -> str:
    kind, _, name = detail.partition(":")
    return f"{name!r} of kind {kind!r}"


def _part(detail: str) -> str:
    return "hash" if detail == "run" else detail


def _describe_entry(finding: Finding) -> str:
    place = f"{finding.where}:{finding.name}" if finding.name else finding.where
    match finding.fault:
        case "runless":
            return f"{place!r} has an entry {finding.what!r}, but this run does not exist"
        case "elsewhere":
            return f"{place!r} has an entry {finding.what!r}, but this run belongs elsewhere ({finding.detail})"
        case "absent":
            return f"{place!r} has an entry {finding.what!r}, but this schedule does not exist"
        case "garbled":
            return f"{place!r} has an entry {finding.what!r} that can't be read"
        case "abandoned":
            what = "a call" if finding.where == "holders" else "a call that waits"
            return f"rate {finding.name!r} counts {what} of worker {finding.detail}, which is gone"
        case "stranger":
            return f"worker {finding.what} has a lease, but no record"
        case _:
            return f"entry {finding.what!r} was set aside because a worker or a coordinator could not read it"


_KEY_NAMES = {
    "ckpt": "the checkpoint",
    "messages": "the messages",
    "signals": "the signals",
    "signal-keys": "the idempotency keys of signals",
    "signal-operations": "the list of sends",
    "joins": "the counts of children",
    "results": "the results of children",
    "output": "the output",
    "effects": "the effects",
    "graph": "the checkpoints of the graph",
    "graph-index": "the index of the graph",
    "graph-threads": "the threads of the graph",
    "once": "the idempotency key",
    "schedule": "the schedule",
    "worker": "the record",
}


def _describe_key(finding: Finding) -> str:
    key = f"{_KEY_NAMES[finding.where]} {finding.what!r}"
    plural = finding.where in (
        "messages", "signals", "signal-keys", "joins", "results", "effects", "graph", "graph-threads",
    )  # fmt: skip
    match finding.fault:
        case "unwatched":
            return f"{key} is not in the list of schedules that coordinators read: it would never fire"
        case "leaked" if finding.where == "worker":
            return f"{key} of a worker that is gone has no TTL"
        case "leaked" if finding.where == "once":
            return f"{key} belongs to a run that does not exist any more, and prevents a new one"
        case "leaked":
            return f"{key} {'are' if plural else 'is'} left over: no run uses {'them' if plural else 'it'}"
        case "endless":
            return f"{key} of an ended run ha{'ve' if plural else 's'} no TTL"
        case "unnoted":
            verb, them = ("are", "them") if plural else ("is", "it")
            return f"{key} {verb} not noted in the hash of the run: scripts would ignore {them}"
        case _:
            return f"{key} of a run that has not ended ha{'ve' if plural else 's'} a TTL and would vanish"
