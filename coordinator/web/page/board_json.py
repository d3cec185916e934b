"""The board as the page receives it: one JSON text for all viewers. This module does no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coordinator.feed.board import Board, ProcessRow, QueueRow
from coordinator.feed.events import RunEvent, RunLook
from coordinator.model.policies.rates import RateLimit, describe_rate
from coordinator.printable import json_text
from coordinator.views.namespace_view import GroupView

MOST_PROCESSES = 200
MOST_RUNS = 60  # runs of one process that are shown; the others are counted
MOST_QUEUES = 200
MOST_GROUPS = 10
MOST_RATES = 10
MOST_EVENTS = 40
SECONDS = 120  # of history in the plots


def encode_board(board: Board) -> str:
    """Return the board as JSON on one line."""
    return json_text(board_data(board))


def board_data(board: Board) -> dict[str, Any]:
    """Return the board as data for JSON. Long lists are cut, and `more_…` fields say how many entries are left out."""
    data: dict[str, Any] = {"now": round(board.now, 3), "error": board.error, "attention": board.attention()}
    if board.overview is None:
        return data
    overview, processes, queues = board.overview, board.processes(), board.queues()
    where = {worker.id: f"{worker.host}:{worker.pid}" for worker in overview.workers}
    return data | {
        "namespace": overview.namespace,
        "partitions": overview.partitions,
        "durability": overview.durability,
        "counts": {str(status): number for status, number in overview.counts.items()},
        "paused": list(overview.paused),
        "coordinators": [{"id": one.id, "age": round(one.age, 1)} for one in overview.coordinators],
        "rate": round(board.rates.rate(board.now), 2),
        "history": board.rates.history(board.now, seconds=SECONDS),
        "groups": [_group(one) for one in board.late.groups[:MOST_GROUPS]],
        "more_groups": max(0, len(overview.groups) - MOST_GROUPS),
        "limits": [
            _limit(one) for one in sorted(overview.rates, key=lambda one: (-one.waiting, one.name))[:MOST_RATES]
        ],
        "more_limits": max(0, len(overview.rates) - MOST_RATES),
        "queues": [_queue(row) for row in queues[:MOST_QUEUES]],
        "processes": [_process(row) for row in processes[:MOST_PROCESSES]],
        "more_processes": max(0, len(processes) - MOST_PROCESSES),
        "events": [_event(event, where) for event in list(board.events)[:MOST_EVENTS]],
    }


def _queue(row: QueueRow) -> dict[str, Any]:
    return {
        "queue": row.queue, "kind": row.kind, "queued": row.queued, "running": row.running,
        "age": None if row.age is None else round(row.age, 1), "rate": round(row.rate, 2), "workers": row.workers,
        "paused": row.paused, "history": list(row.history),
        "depths": list(row.depths), "ages": list(row.ages),
    }  # fmt: skip


def _group(one: GroupView) -> dict[str, Any]:
    return {
        "kind": one.kind, "group": one.group, "held": one.held, "taken": one.taken, "at_once": one.at_once, "rate": one.rate,
        "waited": round(one.waited, 1),
    }  # fmt: skip


def _limit(one: RateLimit) -> dict[str, Any]:
    return {
        "name": one.name, "limit": describe_rate(one), "held": one.held, "waiting": one.waiting, "wait": round(one.wait, 1),
    }  # fmt: skip


def _process(row: ProcessRow) -> dict[str, Any]:
    return {
        "id": row.id, "host": row.host, "pid": row.pid, "fleet": row.fleet, "code": row.code, "slots": row.slots,
        "state": row.state, "lease_age": round(row.lease_age, 1), "lease": row.lease, "memory": row.memory,
        "busy": row.use.busy, "finishing": row.use.finishing, "runs": [_run(run) for run in row.runs[:MOST_RUNS]],
    }  # fmt: skip


def _run(run: RunLook | str) -> dict[str, Any]:
    if isinstance(run, str):
        return {"id": run}
    return {"id": run.id, "kind": run.kind, "attempt": run.attempt, "started": run.started, "cause": run.cause}


def _event(event: RunEvent, where: Mapping[str, str]) -> dict[str, Any]:
    return {
        "at": round(event.at, 3), "run": event.run, "kind": event.kind, "status": str(event.status),
        "attempt": event.attempt, "worker": event.worker, "where": where.get(event.worker, ""), "cause": event.cause,
        "reason": event.reason[:200],
    }  # fmt: skip
