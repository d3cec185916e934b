"""Limits that Python and the Lua scripts share.

Each limit is declared here once. `coordinator/store/generated_lua.py` writes it into the scripts under the same name.
Names that end in `_MS` are times in milliseconds.
"""

from __future__ import annotations

from typing import Final

# ---- losses: when a run is set aside as dead

STRIKES: Final = 3  # losses without progress after which a run is dead
# A run with this number of strikes is a suspect: the next strike is its last. Only a process without other runs gets it.
SUSPECT_STRIKES: Final = STRIKES - 1
BACKSTOP: Final = 100  # losses without progress after which a run is dead, even if other runs were to blame for them

# ---- order of a ready queue: score = time in Unix ms - priority * PRIORITY_STEP

PRIORITY_STEP: Final = 2**43  # more than any time in ms, so that a higher priority always comes first
FAR_FUTURE: Final = 2**53 - 1  # the largest whole number that a Lua number and a sorted set's score can hold exactly

# ---- how long things are kept

DAY_MS: Final = 86_400_000
WEEK_MS: Final = 7 * DAY_MS
RETENTION_MS: Final = {"completed": DAY_MS, "failed": WEEK_MS, "cancelled": WEEK_MS, "dead": WEEK_MS}
# A client or worker may repeat its last call for this time, so the server remembers the run or worker.
TOMBSTONE_MS: Final = 60_000
MARK_MS: Final = 60_000  # the time to live of the mark that lua/namespace/confirm.lua writes
CHILDREN_MS: Final = 2 * WEEK_MS  # the time to live of the set of a run's children; each new child renews it
CHILDREN_LOOK_MS: Final = 300_000  # how often deleted runs are removed from the set of a run's children
OWNERS_MS: Final = 300_000  # the time to live of the list of owners of stand-alone checkpoints; each lease renews it
REMOVED_MS: Final = 600_000  # how long a removed schedule leaves a tombstone, so that a late call does not restore it
KNOWLEDGE_MS: Final = (
    REMOVED_MS // 2
)  # a pause or a change of a limit that was prepared before this time is not carried out

# ---- lists that wake a client, a worker or a coordinator

BELL_MS: Final = 60_000
INBOX_MS: Final = 60_000
INBOX_LENGTH: Final = 1_000
WAKE_MS: Final = 60_000
WAKE_LENGTH: Final = 10_000
UNREPORTED_MS: Final = (
    600_000  # how long endings are noted without a coordinator that counts or traces them; renewed at half
)
UNREPORTED_LENGTH: Final = 10_000  # endings that wait for a coordinator, in one partition; the oldest are dropped
MOST_WAITERS: Final = 1_000  # clients registered on one run; further clients poll

# ---- signals

SIGNAL_PAYLOAD: Final = 1024 * 1024  # bytes of one payload, after encoding
SIGNAL_COUNT: Final = 1_000  # signals of one run that the run has not received
SIGNAL_BYTES: Final = 16 * 1024 * 1024  # bytes of the payloads of these signals
GRANT_COUNT: Final = 1_000  # grants of one run, received or not: kept as long as the run, and not limited like signals
GRANT_BYTES: Final = 256  # bytes of the payload of a grant
SIGNAL_KEYS: Final = 10_000  # idempotency keys of signals that the server keeps for one run
OPERATIONS_MS: Final = 600_000  # a repeated send is recognised for at least this time
OPERATIONS_KEPT: Final = 1_000  # a repeated send is recognised for longer if fewer sends than this followed it

# ---- sessions of agents

SESSION_OPERATIONS_MS: Final = WEEK_MS  # a repeated change of a session is recognised for this time
SESSION_OPERATIONS_TRIM: Final = 100  # after this many changes of a session, the older ones are forgotten

# ---- output

EVENT_BYTES: Final = 256 * 1024  # bytes of one event, after encoding
OUTPUT_UNSENT: Final = 1024 * 1024  # bytes of events of one run that a worker keeps until the server has stored them
OUTPUT_UNSENT_IN_PROCESS: Final = 64 * 1024 * 1024  # the same, for all runs of a worker process
OUTPUT_EVENTS: Final = 10_000  # entries in the output of one run; the oldest are removed
OUTPUT_BYTES: Final = 4 * 1024 * 1024  # bytes of the events in the output of one run
OUTPUT_REWINDS: Final = 256  # rewinds in the output of one run that stay when their events are removed
OUTPUT_PLACES: Final = (
    16  # ids of entries for each event: the event, a rewind and settled positions (14 in all), the end
)

# ---- joined children

CHILDREN_EXAMINED_MS: Final = 60_000  # how often a coordinator checks that the children of a waiting run still exist
CHILDREN_EXAMINED: Final = 20  # children of a run that a coordinator checks each time
PARTING_GRACE_MS: Final = 30_000  # how long the handler of a child has to stop after its parent has dropped it

# ---- groups

GROUP_NAME: Final = 200  # characters in the name of a group
MOST_AT_ONCE: Final = 999_999_999  # the largest limit
SWEEP_GROUPS: Final = 2_000  # groups that a coordinator sweeps in one tick; it sweeps the others in the next ticks
SWEEP_TURNS: Final = (
    10  # a sweep examines the places of a part of the groups; after this number of sweeps, of all groups
)
PLACES_FILLED: Final = 100  # places of a group that one script fills; the sweep fills the others

# ---- fleets

SEEN_MS: Final = 60_000  # a coordinator or supervisor that was not seen for this time is removed from its list
ROLL_MS: Final = 3_600_000  # a roll is removed this time after its last progress

# ---- sizes

ASIDE_ENTRIES: Final = 10_000  # entries that could not be read, kept for the doctor
STORY_ENTRIES: Final = 20  # attempts in the story of a run
STORY_BYTES: Final = 16_384
SPEC_PIECE: Final = 64  # bytes in one hash field; a server stores a hash compactly while no value is longer
SPEC_IN_PIECES: Final = 512  # a longer spec is stored whole
MOST_CLAIMED: Final = 500  # runs in one claim
BATCH: Final = 1_000  # values in one command, below the limit of Lua's unpack
