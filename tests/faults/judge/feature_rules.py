"""The judge's rules about output, effects, budgets, groups and rates. Pure code without I/O."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from tests.faults.judge.evidence import Evidence, epoch_of
from tests.faults.judge.history import NEVER, Operation

ENDINGS = ("complete", "fail", "release", "retry", "reject", "suspend")
UNDER_WAY = 2  # what a lost attempt may have spent without the server's knowledge

Interval = tuple[int, int]


def events_settled_once(see: Evidence) -> Iterator[str]:
    """A reader of settled events gets each event of a completed run once and in order."""
    for id, run in see.final.runs.items():
        if run.status == "completed" and run.events is not None and list(run.events) != list(run.expected_events):
            yield f"run {id} completed with the settled events {list(run.events)} instead of {list(run.expected_events)}"


def effects_never_repeated(see: Evidence) -> Iterator[str]:
    """An effect without a check happens at most once, and a completed run has all its effects."""
    happened = Counter((event.run, event.number) for event in see.events if event.what == "effect")
    for (id, number), count in happened.items():
        if count > 1:
            yield f"effect {number} of run {id} happened {count} times"
    for id, run in see.final.runs.items():
        missing = [number for number in range(run.effects) if not happened[id, number]]
        if run.status == "completed" and missing:
            yield f"run {id} completed without its effects {missing}"


def budgets_hold(see: Evidence) -> Iterator[str]:
    """A run spends at most its budget, and what was under way when an attempt was lost. Nothing is counted twice."""
    spent = Counter(event.run for event in see.events if event.what == "spent")
    for id, run in see.final.runs.items():
        lost = max(0, len({claim.token for claim in see.claims.get(id, ())}) - 1)
        if run.budget and spent[id] > run.budget + UNDER_WAY * lost:
            yield f"run {id} has spent {spent[id]} of {run.budget}, and lost {lost} attempts"
        if run.budget and run.spent > spent[id]:
            yield f"run {id} has spent {spent[id]}, but {run.spent} is counted"


def groups_hold(see: Evidence) -> Iterator[str]:
    """Never do more runs of a group run at the same time than the highest limit that was set for it."""
    most: Counter[str] = Counter()
    for op in see.history.of("limit"):
        if group := str(op.given.get("group", "")):
            most[group] = max(most[group], int(op.given.get("at_once") or 0))
    group_of = {op.id: str(op.given["group"]) for op in see.history.of("enqueue") if op.given.get("group")}
    running: dict[str, list[Interval]] = defaultdict(list)
    for id, interval in _surely_running(see, group_of):
        running[group_of[id]].append(interval)
    for group, intervals in running.items():
        if (count := _most_at_once(intervals)) > most[group]:
            yield f"{count} runs of group {group} were running at the same time, at most {most[group]} may"


def rates_hold(see: Evidence) -> Iterator[str]:
    """External calls start within the burst and the rate, and not too many are under way at the same time.

    The place of a call is free when its worker is declared lost, although a worker that only stood still continues its call.
    Other calls may use the tokens that a call has given back, for example because it was stopped before it started.
    """
    rates = {str(op.given["name"]): str(op.given["rate"]) for op in see.history.of("rate") if op.given.get("rate")}
    started: dict[str, dict[tuple[str, int], Operation]] = defaultdict(dict)
    for op in see.history.of("acquire"):
        if op.word == "ok":
            started[str(op.given["name"])].setdefault((str(op.given["worker"]), int(op.given["number"])), op)
    ended = {
        (str(op.given["worker"]), int(op.given["number"])): op.invoked
        for op in reversed(list(see.history.of("finish")))
    }
    lost, costs = _lost_workers(see), _real_costs(see)
    for name, calls in started.items():
        amount, per, burst, at_once = (int(part) for part in rates[name].split())
        paid = [replace(op, given={**op.given, "cost": costs.get(key, op.given["cost"])}) for key, op in calls.items()]
        if (excess := _excess(paid, amount / per)) > burst + 1:
            yield f"calls of {name} used {excess:.0f} tokens more than the rate gives, above the burst of {burst}"
        open_calls = [(op.ended, min(ended[key], lost.get(key[0], NEVER))) for key, op in calls.items() if key in ended]
        if (count := _most_at_once(open_calls)) > at_once:
            yield f"{count} calls of {name} were under way at the same time, at most {at_once} may be"


def _surely_running(see: Evidence, ids: Iterable[str]) -> Iterator[tuple[str, Interval]]:
    """Return the times in which runs were surely running: from the answer of a claim to the first call that may end it."""
    cancelled = {op.id for op in see.history.of("cancel")}
    ends: dict[tuple[str, str], int] = {}
    for op in see.history.of(*ENDINGS):
        ends.setdefault((op.id, op.token), op.invoked)
    lost = _lost_workers(see)
    for id in ids:
        for claim in see.claims.get(id, ()):
            worker = claim.token.split("-", 2)[-1]
            end = min(ends.get((id, claim.token), NEVER), lost.get(worker, NEVER))
            others = (other.invoked for other in see.claims[id] if epoch_of(other.token) > claim.epoch)
            end = min(end, min(others, default=NEVER))
            if id not in cancelled and end != NEVER and end > claim.ended:
                yield id, (claim.ended, end)


def _real_costs(see: Evidence) -> dict[tuple[str, int], str]:
    """Return the costs that workers have reported for calls, by worker and number."""
    costs: dict[tuple[str, int], str] = {}
    for op in see.history.of("finish"):
        if str(op.given.get("cost", "")):
            costs.setdefault((str(op.given["worker"]), int(op.given["number"])), str(op.given["cost"]))
    return costs


def _lost_workers(see: Evidence) -> dict[str, int]:
    """Return when each worker that was declared lost may have been declared lost at the earliest."""
    lost: dict[str, int] = {}
    for op in see.history.of("abandon", "recover"):
        lost.setdefault(str(op.given["worker"]), op.invoked)
    return lost


def _most_at_once(intervals: Iterable[Interval]) -> int:
    """Return the largest number of intervals that share a moment."""
    changes = sorted(change for begin, end in intervals if end > begin for change in ((end, -1), (begin, 1)))
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def _excess(calls: Iterable[Operation], tokens_per_ms: float) -> float:
    """Return by how many tokens the calls of any window exceed what the rate gives in this time.

    A call started at an unknown moment between its request and its answer, so a window reaches from the first request to the
    last answer. With the requests as begins and the answers as ends, no window is judged that is shorter than the true one.

    A window has all calls that were requested and answered no earlier than its first one. Behind the last call that was requested
    earlier and answered later (`overlap`), these are all calls: then the best end of the window is known for all windows at once.
    """
    done = sorted(calls, key=lambda op: (op.ended, op.invoked))
    costs = [float(op.given["cost"]) for op in done]
    before = [0.0, *accumulate(costs)]  # the cost of all calls before each one
    worth = [before[at + 1] - op.ended / 1e6 * tokens_per_ms for at, op in enumerate(done)]
    best = list(accumulate(reversed(worth), max))[::-1]  # of each call and all later ones
    most = 0.0
    for at, last in enumerate(_overlaps(done)):
        first, total = done[at], 0.0
        for index in range(at, last + 1):
            if done[index].invoked >= first.invoked:
                total += costs[index]
                most = max(most, total - (done[index].ended - first.invoked) / 1e6 * tokens_per_ms)
        if last + 1 < len(done):
            most = max(most, total - before[last + 1] + first.invoked / 1e6 * tokens_per_ms + best[last + 1])
    return most


def _overlaps(done: Sequence[Operation]) -> list[int]:
    """Return for each call the last one that was requested earlier and answered later, or the call itself.

    The calls are sorted by their answers.
    """
    found = [0] * len(done)
    furthest, same = -1, list[int]()
    for at in sorted(range(len(done)), key=lambda at: done[at].invoked):
        if same and done[same[0]].invoked < done[at].invoked:
            furthest, same = max(furthest, *same), []
        found[at] = max(furthest, at)
        same.append(at)
    return found
