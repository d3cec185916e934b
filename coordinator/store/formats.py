"""The stored formats: which fields each hash has, and the order of numbers that share a field.

Python and the Lua scripts follow these declarations. `generated_lua.py` makes the Lua readers and writers from them, and refuses
a script that reads a field that is not declared here. The names are stored on servers: they must never change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Final

from coordinator.encoding.checkpoint_head import CheckpointHead
from coordinator.encoding.spec import SPEC_FIELDS
from coordinator.model.policies.budget import SPEND_NUMBERS
from coordinator.model.policies.deadline import SPENT_NUMBERS
from coordinator.model.run import Counters
from coordinator.model.story import ATTEMPT_NUMBERS

# ---- whole numbers in one field, separated by spaces

COUNTERS: Final = tuple(field.name for field in fields(Counters))
HEAD: Final = tuple(field.name for field in fields(CheckpointHead))
SPENT: Final = SPENT_NUMBERS
SPEND: Final = SPEND_NUMBERS
ATTEMPT: Final = ATTEMPT_NUMBERS
OUTPUT: Final = (
    "epoch",  # of the owner that wrote last
    "base",  # number of the last event that its checkpoint covered when it began
    "position",  # number of the last event
    "settled",  # number of the last event that a checkpoint covers
    "marks",  # entries that were written after the last event: a rewind, settled positions
    "bytes",  # of the events that are stored
)

# ---- netstrings in one argument

DELTA: Final = (
    "seq",  # number of this save
    "acked",  # number of the last save that the worker knows to be stored; 0: everything is in this delta
    "generation",  # number of the transcript
    "base",  # messages of the transcript before this delta
    "count",  # messages in this delta
    "chunk",  # these messages
    "iteration",
    "schema",
    "state_mode",  # same, or set
    "state",
    "phases",  # netstrings: field, output, field, output, …
    "drop",  # netstrings: fields of phases that are no longer valid
    "note",
    "unfinished",
)
# An optional last part of a delta. Without it, the stored field stays as it is.
MORE: Final = "more"  # netstrings: name, value, name, value, …: see workers/handlers/checkpoint/bookkeeping.py
# An optional part after `more`: the events that the server may not have yet, see lua/shared/output.lua.

# ---- fields of hashes

RUN: Final = (
    *SPEC_FIELDS,  # inputs, meta and options: in pieces of 64 bytes while they are short, otherwise whole in the first field
    "status",
    "route",  # queue, kind and schema: the ready queue in which it waits
    "asked",  # the schema that its producer asked for, if it is not 0
    "counters",  # see COUNTERS
    "token",  # of its owner, while it is running
    "last",  # the last call that ended an attempt, as "<token> <script> <answer>": a repetition gets the same answer
    "started",  # when its last attempt was claimed
    "ended",
    "expires",  # when it is cancelled if no worker has claimed it
    "retention",  # ms that it is kept after its end
    "once",  # its idempotency key, as "<ttl or -> <key>"
    "digest",  # of its inputs, for the idempotency key
    "cause",  # why its next attempt resumes: release, recover, retry, revive, or "wake <reason>"
    "cancel",  # when a cancel was requested
    "kill",  # the error of the deadline at which it was killed, in this life
    "killed",  # the same, in the previous life
    "spent",  # see SPENT
    "spend",  # see SPEND
    "losses",  # "<count> <progress>": how often it was lost without progress, and the progress counter at the last loss
    "prev",  # "<worker> <code>" of its last owner
    "story",  # netstrings: one entry for each attempt that did not complete
    "note",
    "result",
    "error",
    "reason",  # why it was cancelled or is dead
    "wait",  # "<since> <condition>": what a waiting run waits for, see lua/shared/waiting.lua
    "rejoined",  # base and number of endings of the step for which the run was last suspended although they were there already
    "endings",  # the number of its ended children when it was last lost; a loss after further endings is not a strike
    "called",  # "<order> <token>": the last call of join_children.lua by this owner; an earlier one that arrives late is refused
    "rewoken",  # the progress counter when the run was last suspended although its condition was already true
    # letters of its other keys: s signals, r results, e effects, o output, g graphs of LangGraph; b: it has a field `spend`;
    # j: it is a joined child; l: it has a group
    "beside",
    "group",  # "<kind>:<name>" of its group
    "held",  # when it last entered the line of its group with an older score; later than the score only during that wait
    "output",  # see OUTPUT
    "joined",  # "<parent> <life> <base> <index>": the step of its parent that waits for its end
    "waited",  # set when a client waits for its end
    "operation",  # the last cancel
    "revival",  # the last revive
)

WORKER: Final = (
    "lease", "host", "pid", "started", "fleet", "code", "slots", "routes", "joined", "mark", "memory",
    "knows",  # names of features that its version knows, separated by spaces
    "limits",  # the limits of its handlers, each as <kind>=<limit>, separated by spaces
    "stuck",  # ids of runs that it does not own any more but whose handlers do not stop
    "loading",  # runs whose checkpoints it is loading, each as <id>:<failed loads>
    "limited",  # runs whose calls wait for a rate, each as <id>:<name>:<since in ms>
    "claim",  # number of its last claim
    "floor",  # claims up to this number take nothing: the worker does not wait for them any more
    "suspect",  # number of the claim that took a suspect
    "drain",  # when it was asked to drain
    # set when the worker is declared lost: its lease is never renewed again, and its runs are recovered; `struck`, or `excused` if
    # its lease expired during an outage, so that its runs get no strike
    "condemned",
    "blame",  # the only run that gets a strike; `nobody` for none; empty for each of its runs
    "seen",  # its last heartbeat before it was declared lost
    # "<deadline> <until> <0 or 1>": when its lease expired, until when a pause of recovery protects it, 1 if that was prolonged
    "spared",
)  # fmt: skip

# and a field phase:<name> for each finished phase, and a field wait:<name> for each wait that is over
CHECKPOINT: Final = ("head", "state", "unfinished", "inputs", MORE)

# and a field <number>:<topic> for each stored signal, as "<time in ms> <order> <payload>". The number is first, so that a
# topic that is named "last" or "first" can't be mistaken for the bookkeeping of another topic.
SIGNALS: Final = (
    "order",  # number of signals ever sent to the run: the order of the last one
    "count",  # signals that are stored
    "bytes",  # their payloads
)  # and the fields last:<topic>, first:<topic>: the numbers of the newest and the oldest stored signal

SCHEDULE: Final = (
    "generation", "state", "after", "next", "due", "last", "rules", "overlap", "route", "spec", "priority", "expires", "retention",
    "offset", "why", "fired", "skipped",
    "past",  # generations of the last changes before the present one, newest first: a repeated call is recognised by its own
)  # fmt: skip

# <base>:<index> -> "<order> <status> <payload>" for each child that has ended, and <base>#<order> -> index
RESULTS: Final = ()

# begun:<name> -> the attempt and the token that began the effect, or done:<name> -> the output of the effect
EFFECTS: Final = ()

# and a field seen:<worker> with the highest number of a request that the worker has sent
BUCKET: Final = (
    "level",  # tokens that calls have used, less what has drained since
    "at",  # the time of this level, in ms
    "resumes",  # when a back-off ends, in ms
    "pause",  # the length of this back-off, in ms
    "ticket",  # the cost of all requests that waited since the line was last empty
    "settled",  # 1 if a call has cost less than it had reserved: then waiting calls ask again earlier
    "checked",  # when workers were last asked whether their calls are still open
    "front",  # the ticket that the first request of the line has if no request left the line before it
    "late",  # requests with a lower ticket may have been told a time that is too late
)

FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "namespace": ("format", "partitions", "durability", "birth", "clock", "limited"),
    "run": RUN,
    "worker": WORKER,
    "ckpt": CHECKPOINT,
    "signals": SIGNALS,
    "schedule": SCHEDULE,
    "record": (*CHECKPOINT, "note", "route", "owner", "past", "claim", "meta", "gone"),
    "bucket": BUCKET,
    "limits": ("mixed",),  # and the limits by kind and group, see Keys.limits
    "roll": ("roll", "by", "asked", "at_once"),
    "watch": ("at", "hold_until", "clamped", "rest"),
}
