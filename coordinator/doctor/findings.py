"""One thing that is wrong in a namespace, and how it is said: the words of the scripts as sentences. Pure, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Subject = Literal["run", "entry", "key", "type"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. `what` is a run's id, a member or a key's name; `where` the set, list or family it is in."""

    subject: Subject
    partition: int
    what: str
    fault: str
    detail: str = ""
    where: str = ""
    name: str = ""
    outcome: str = ""

    @property
    def mended(self) -> bool:
        return self.outcome in ("repaired", "kept")

    @property
    def sentence(self) -> str:
        """What is wrong, in words."""
        match self.subject:
            case "run":
                return f"run {self.what} {_of_run(self.fault, self.detail)}"
            case "entry":
                return _of_entry(self)
            case "key":
                return _of_key(self)
            case "type":
                return f"key {self._key!r} is a {self.detail}, and should be a {self.fault}: whoever needs it fails"

    @property
    def remedy(self) -> str:
        """What was done about it."""
        match self.outcome:
            case "repaired":
                return "mended"
            case "kept":
                return f"moved to 'set-aside:{self._key}' for a week"
            case "blocked":
                return "not mended: something else has to be mended first; run it again"
            case "changed":
                return "has changed meanwhile; looked at again"
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


_LINES = {"ready": "its line", "suspect": "the line of suspects", "delayed": "the list of delayed runs"}


def _of_run(fault: str, detail: str) -> str:
    match fault:
        case "unreadable":
            what, _, is_there = detail.partition(" ")
            said = f" ({is_there[:80]!r})" if is_there else ""
            senseless = "make no sense" if what == "counters" else "makes no sense"
            return f"can't be read: its {what} {senseless if is_there else 'is missing'}{said}"
        case "lineless":
            waits = "delayed" if detail == "delayed" else "queued"
            return f"is {waits} and not in {_LINES[detail]}: it would wait for ever"
        case "twice":
            return f"is also in {_LINES.get(detail, detail)}, where it does not belong"
        case "unrouted":
            return f"waits in line {detail!r}, which nobody rings"
        case "tokenless":
            return "is running and has no owner that can be read"
        case "ownerless":
            return f"is running on worker {detail}, which has no lease: nobody would recover it"
        case "unowned":
            return f"is running on worker {detail}, and not among the runs that this worker owns"
        case "unlive":
            return "is running, and not in the set of live runs"
        case "held":
            return f"is not running, and still held by worker {detail}"
        case "timeless":
            what = "the cancel that was asked for" if detail == "cancel" else "its expiry"
            return f"has no deadline for {what}"
        case "mortal":
            return f"has not ended, and its {_part(detail)} would vanish by a TTL"
        case "endless":
            return f"has ended, and its {_part(detail)} has no TTL: it would stay for ever"
        case "live":
            return "has ended, and is still in the set of live runs"
        case "unlisted":
            return f"has ended, and is not in the list of {detail} runs"
        case _:
            return f"is damaged: {fault} {detail}"


def _part(detail: str) -> str:
    return "hash" if detail == "run" else detail


def _of_entry(finding: Finding) -> str:
    place = f"{finding.where}:{finding.name}" if finding.name else finding.where
    match finding.fault:
        case "runless":
            return f"{place!r} has an entry {finding.what!r}, and there is no such run"
        case "elsewhere":
            return f"{place!r} has an entry {finding.what!r}, and that run belongs elsewhere ({finding.detail})"
        case "absent":
            return f"{place!r} has an entry {finding.what!r}, and there is no such schedule"
        case "stranger":
            return f"worker {finding.what} has a lease, and nothing is known of it"
        case _:
            return f"entry {finding.what!r} could not be read by a worker or a coordinator, and was set aside"


def _of_key(finding: Finding) -> str:
    what = {"ckpt": "the checkpoint", "messages": "the messages", "once": "the idempotency key", "worker": "the record"}
    what["schedule"] = "the schedule"
    key = f"{what[finding.where]} {finding.what!r}"
    match finding.fault:
        case "unwatched":
            return f"{key} is in no list that a coordinator looks at: it would never fire"
        case "leaked" if finding.where == "worker":
            return f"{key} of a worker that is gone has no TTL"
        case "leaked" if finding.where == "once":
            return f"{key} names a run that is gone, and is in the way of a new one"
        case "leaked":
            return f"{key} belong{'' if finding.where == 'messages' else 's'} to no run: left over"
        case "endless":
            return f"{key} of an ended run ha{'ve' if finding.where == 'messages' else 's'} no TTL"
        case _:
            return f"{key} of a run that has not ended would vanish by a TTL"
