"""Define handlers for durable runs, and run them in worker processes.

A `Registry` holds the handlers, and each handler gets a `Run` or an `AsyncRun`. `workers.testing` helps to test handlers;
`workers.durable` offers checkpoints without workers and queues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.lazy import lazy_names

if TYPE_CHECKING:
    from coordinator.model.policies.budget import Budget, BudgetExceeded, Spending, UnknownPrice
    from coordinator.model.policies.deadline import Deadline, Extend, Kill, Leave, Watched
    from coordinator.model.policies.retry import OutcomeUnknown, Retry, RetryLater
    from workers.handlers.async_run import AsyncRun
    from workers.handlers.checkpoint.messages import ToolCall
    from workers.handlers.checkpoint.migration import Left
    from workers.handlers.current_run import current_run
    from workers.handlers.facts import Stopped
    from workers.handlers.handler import Handler
    from workers.handlers.operations.children import ChildFailed, Done
    from workers.handlers.operations.effects import NotDone
    from workers.handlers.operations.limits import Limit
    from workers.handlers.operations.waits import BadSignal, Signal, WaitTimeout
    from workers.handlers.registry import Registry
    from workers.handlers.run import Run

__all__ = [
    "AsyncRun",
    "BadSignal",
    "Budget",
    "BudgetExceeded",
    "ChildFailed",
    "Deadline",
    "Done",
    "Extend",
    "Handler",
    "Kill",
    "Leave",
    "Left",
    "Limit",
    "NotDone",
    "OutcomeUnknown",
    "Registry",
    "Retry",
    "RetryLater",
    "Run",
    "Signal",
    "Spending",
    "Stopped",
    "ToolCall",
    "UnknownPrice",
    "WaitTimeout",
    "Watched",
    "current_run",
]

_MODULES = {
    "Budget": "coordinator.model.policies.budget",
    "BudgetExceeded": "coordinator.model.policies.budget",
    "UnknownPrice": "coordinator.model.policies.budget",
    "Spending": "coordinator.model.policies.budget",
    "Deadline": "coordinator.model.policies.deadline",
    "Extend": "coordinator.model.policies.deadline",
    "Kill": "coordinator.model.policies.deadline",
    "Leave": "coordinator.model.policies.deadline",
    "Watched": "coordinator.model.policies.deadline",
    "OutcomeUnknown": "coordinator.model.policies.retry",
    "Retry": "coordinator.model.policies.retry",
    "RetryLater": "coordinator.model.policies.retry",
    "AsyncRun": "workers.handlers.async_run",
    "ChildFailed": "workers.handlers.operations.children",
    "Done": "workers.handlers.operations.children",
    "Stopped": "workers.handlers.facts",
    "current_run": "workers.handlers.current_run",
    "NotDone": "workers.handlers.operations.effects",
    "Handler": "workers.handlers.handler",
    "Limit": "workers.handlers.operations.limits",
    "ToolCall": "workers.handlers.checkpoint.messages",
    "Left": "workers.handlers.checkpoint.migration",
    "Registry": "workers.handlers.registry",
    "Run": "workers.handlers.run",
    "BadSignal": "workers.handlers.operations.waits",
    "Signal": "workers.handlers.operations.waits",
    "WaitTimeout": "workers.handlers.operations.waits",
}

if not TYPE_CHECKING:  # a type checker that sees __getattr__ would accept every name
    __getattr__, __dir__ = lazy_names(__name__, _MODULES)
