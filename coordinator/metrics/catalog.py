"""The catalog of all exported metrics: name, type, labels and meaning.

Tests compare the documentation, the Grafana dashboard and the alert rules with this catalog. No metric has a run id, a worker id
or a process id as a label. Programs choose the values of the labels `kind` and `queue`, and operators those of `limit`, so their
number is limited (see `OTHER`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

# The most label values that are exported. Everything beyond is summed under the label value OTHER.
MOST_KINDS: Final = 100  # kinds of one process
MOST_LIMITED: Final = 100  # kinds with waiting groups: the kinds with the most waiting runs
MOST_RATES: Final = 100  # rates of external calls: the rates for which the most calls wait
MOST_QUEUES: Final = 200  # pairs of queue and kind: the pairs with the most queued runs
OTHER: Final = "other"  # the label value of all kinds, queues and rates beyond these limits

LONG: Final = (
    0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0,
)  # fmt: skip
SHORT: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

# The outcomes of attempts that ended their run. The run has the status of the same name.
ENDINGS: Final = ("completed", "failed", "cancelled", "dead")
OUTCOMES: Final = (*ENDINGS, "retried", "released", "waiting", "rejected", "lost")


@dataclass(frozen=True, slots=True)
class Metric:
    """One exported metric.

    Attributes:
        name: The name, without the suffixes that a counter or a histogram gets.
        type: The type.
        help: The meaning, as a sentence.
        labels: The names of its labels.
        bounds: The upper bounds of the buckets of a histogram, without infinity.
        source: The processes that export it: `workers`, `coordinator` or `both`.
    """

    name: str
    type: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    source: Literal["workers", "coordinator", "both"] = "workers"

    @property
    def sample_names(self) -> tuple[str, ...]:
        """The names of the metric's samples, as Prometheus stores them."""
        if self.type == "histogram":
            return (f"{self.name}_bucket", f"{self.name}_count", f"{self.name}_sum")
        return (f"{self.name}_total",) if self.type == "counter" else (self.name,)


ATTEMPTS: Final = Metric(
    "runs_attempts", "counter",
    "Attempts that ended, by outcome. A completed, failed, cancelled or dead attempt ended its run.", ("kind", "outcome"),
)  # fmt: skip
ENDED: Final = Metric(
    "runs_ended", "counter",
    "Runs that ended, by status. Workers count the runs that their attempts ended, and coordinators all others.",
    ("kind", "status"), source="both",
)  # fmt: skip
QUEUED: Final = Metric(
    "runs_queued_seconds", "histogram",
    "Time from when a new run could be claimed until a worker claimed it. Of 8 or more runs in one claim, one counts for all.",
    ("kind",), LONG,
)  # fmt: skip
PICKUP: Final = Metric(
    "runs_pickup_seconds", "histogram",
    "Time from the claim to the first line of the handler, for claims of fewer than eight runs.", ("kind",), SHORT,
)  # fmt: skip
ATTEMPT_SECONDS: Final = Metric(
    "runs_attempt_seconds",
    "histogram",
    "Duration of attempts, from the claim to the recorded outcome. If many short ones complete together, one in 8 is measured.",
    ("kind",),
    LONG,
)
RESUME: Final = Metric(
    "runs_resume_seconds", "histogram",
    "Time from the loss of a run's worker until another worker claimed the run.", ("kind",), LONG,
)  # fmt: skip
REDONE: Final = Metric(
    "runs_redone_seconds", "counter",
    "Work of lost attempts after their last checkpoint, which had to be done again; an upper bound.", ("kind",),
)  # fmt: skip
STRIKES: Final = Metric(
    "runs_strikes", "counter", "Attempts at runs that had lost their worker before without making progress.", ("kind",)
)
FENCED: Final = Metric(
    "runs_fenced_writes",
    "counter",
    "Writes that the server refused because the run belongs to another worker.",
    ("kind",),
)
SAVE_SECONDS: Final = Metric(
    "runs_save_seconds", "histogram", "Time until the server acknowledged a checkpoint.", ("kind",), SHORT
)
SAVED_BYTES: Final = Metric(
    "runs_saved_bytes", "counter", "Bytes of messages, state and phases in the checkpoints that were sent.", ("kind",)
)
THROTTLED: Final = Metric(
    "runs_saves_throttled", "counter", "Cuts that were not sent, because a newer cut replaced them first.", ("kind",)
)
CLAIMS: Final = Metric("runs_claims", "counter", "Claims that the server answered: with runs, or empty.", ("answer",))
ROUND_TRIP: Final = Metric(
    "runs_server_round_trip_seconds", "histogram", "Time until the server answered a heartbeat.", (), SHORT
)
AT_RISK: Final = Metric(
    "runs_work_at_risk_seconds", "gauge",
    "Work since the last checkpoint of all attempts: what would be lost if every process ended now. Sum it over the hosts.",
)  # fmt: skip
HEARTBEAT_AGE: Final = Metric(
    "runs_heartbeat_age_seconds", "gauge", "Time since the last heartbeat, of the process where it is oldest."
)
SLOTS: Final = Metric("runs_slots", "gauge", "Slots of all worker processes of the host.")
SLOTS_BUSY: Final = Metric("runs_slots_busy", "gauge", "Slots that a run occupies, at most all.")
FINISHING: Final = Metric(
    "runs_finishing",
    "gauge",
    "Runs beyond the slots: their handlers have ended, and their outcomes are being recorded.",
)
MEMORY: Final = Metric("runs_memory_bytes", "gauge", "Resident memory of all worker processes of the host.")
PROCESSES: Final = Metric(
    "runs_processes", "gauge", "Worker processes, by state: starting, ready or draining.", ("state",)
)
PROCESS_ENDS: Final = Metric(
    "runs_process_ends", "counter",
    "Worker processes that ended: drained, stopped by their supervisor before they had started, or died (any other way).",
    ("how",),
)  # fmt: skip
RECOVERED: Final = Metric(
    "runs_recovered", "counter",
    "Runs that were taken from lost workers, by their new status. `by` is the process that took them.", ("status", "by"),
    source="both",
)  # fmt: skip

LIMIT_WAIT: Final = Metric(
    "runs_limit_wait_seconds", "histogram",
    "Time that calls of run.limit waited, by the kind of their run. Calls that started at once are not counted.", ("kind",), LONG,
)  # fmt: skip
IN_STATUS: Final = Metric(
    "runs_in_status", "gauge", "Runs of the namespace by status. Ended runs are counted until their retention is over.",
    ("status",), source="coordinator",
)  # fmt: skip
DEPTH: Final = Metric("runs_queue_depth", "gauge", "Queued runs.", ("queue", "kind"), source="coordinator")
OLDEST: Final = Metric(
    "runs_queue_oldest_seconds",
    "gauge",
    "Time that the oldest queued run has waited.",
    ("queue", "kind"),
    source="coordinator",
)
GROUP_WAITING: Final = Metric(
    "runs_group_waiting", "gauge", "Queued runs that wait for a place in their group.", ("kind",), source="coordinator"
)
GROUP_ADMITTED: Final = Metric(
    "runs_group_admitted", "gauge",
    "Runs that are ready or running in groups in which other runs wait for a place: the places that are taken.", ("kind",),
    source="coordinator",
)  # fmt: skip
GROUPS_FULL: Final = Metric(
    "runs_groups_full", "gauge", "Groups in which runs wait for a place.", ("kind",), source="coordinator"
)
GROUPS_PACED: Final = Metric(
    "runs_groups_paced", "gauge", "Groups in which runs wait for the rate of starts, although places are free.", ("kind",),
    source="coordinator",
)  # fmt: skip
GROUP_OLDEST: Final = Metric(
    "runs_group_oldest_seconds", "gauge",
    "Time that the first run of a line has waited for its group, in the group where it is longest.", ("kind",),
    source="coordinator",
)  # fmt: skip
RATE_CALLS: Final = Metric(
    "runs_rate_calls", "gauge", "External calls that are under way, by the name of their limit.", ("limit",),
    source="coordinator",
)  # fmt: skip
RATE_WAITING: Final = Metric(
    "runs_rate_waiting", "gauge", "External calls that wait for their limit.", ("limit",), source="coordinator"
)
RATE_WAIT: Final = Metric(
    "runs_rate_wait_seconds", "gauge",
    "Time until a call that asks now may start, as far as the rate, the calls before it and a back-off decide.", ("limit",),
    source="coordinator",
)  # fmt: skip
OVERDUE: Final = Metric(
    "runs_delayed_overdue_seconds", "gauge", "Time since the first delayed run should have been queued; 0 if none is late.",
    source="coordinator",
)  # fmt: skip
SCHEDULES: Final = Metric("runs_schedules", "gauge", "Schedules that are not paused.", source="coordinator")
SCHEDULES_LATE: Final = Metric(
    "runs_schedules_late", "gauge", "Schedules whose fire time passed more than 5 seconds ago.", source="coordinator"
)
WORKERS: Final = Metric(
    "runs_workers", "gauge", "Workers of the namespace, by state: live, draining, expired or condemned.", ("state",),
    source="coordinator",
)  # fmt: skip
COORDINATORS: Final = Metric(
    "runs_coordinators",
    "gauge",
    "Coordinators of the namespace that were active within a minute.",
    source="coordinator",
)
ASIDE: Final = Metric(
    "runs_set_aside",
    "gauge",
    "Damaged entries that were set aside: 'coordinator doctor' shows them.",
    source="coordinator",
)
UP: Final = Metric("runs_server_up", "gauge", "1 if the server answered this scrape, 0 if not.", source="coordinator")
SCRAPE: Final = Metric(
    "runs_scrape_seconds", "gauge", "Time that the requests of this scrape to the server took.", source="coordinator"
)

CATALOG: Final = {
    one.name: one
    for one in (
        ATTEMPTS, ENDED, QUEUED, PICKUP, ATTEMPT_SECONDS, RESUME, REDONE, STRIKES, FENCED, SAVE_SECONDS, SAVED_BYTES, THROTTLED,
        CLAIMS, ROUND_TRIP, AT_RISK, HEARTBEAT_AGE, SLOTS, SLOTS_BUSY, FINISHING, MEMORY, PROCESSES, PROCESS_ENDS, RECOVERED,
        LIMIT_WAIT, IN_STATUS, DEPTH, OLDEST, GROUP_WAITING, GROUP_ADMITTED, GROUPS_FULL, GROUPS_PACED, GROUP_OLDEST,
        RATE_CALLS, RATE_WAITING, RATE_WAIT, OVERDUE, SCHEDULES, SCHEDULES_LATE, WORKERS, COORDINATORS, ASIDE, UP, SCRAPE,
    )
}  # fmt: skip
