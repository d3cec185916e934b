"""Define handlers for durable runs, and run them in worker processes.

A `Registry` holds the handlers, and each handler gets a `Run` or an `AsyncRun`. `workers.testing` helps to test handlers;
`workers.durable` offers checkpoints without workers and queues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.lazy import lazy_names

if TYPE_CHECKING:
    from coordinator.model.budget import Budget, BudgetExceeded, Spending
    from coordinator.model.deadline import Deadline, Extend, Kill, Leave, Watched
    from coordinator.model.retry import OutcomeUnknown, Retry, RetryLater
    from workers.handlers.async_run import AsyncRun
    from workers.handlers.children import ChildFailed, Done
    from workers.handlers.context import Stopped, current_run
    from workers.handlers.effects import NotDone
    from workers.handlers.handler import Handler
    from workers.handlers.limits import Limit
    from workers.handlers.messages import ToolCall
    from workers.handlers.migration import Left
    from workers.handlers.registry import Registry
    from workers.handlers.run import Run
    from workers.handlers.waits import Signal, WaitTimeout

__all__ = [
    "AsyncRun",
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
    "WaitTimeout",
    "Watched",
    "current_run",
]

_MODULES = {
    "Budget": "coordinator.model.budget",
    "BudgetExceeded": "coordinator.model.budget",
    "Spending": "coordinator.model.budget",
    "Deadline": "coordinator.model.deadline",
    "Extend": "coordinator.model.deadline",
    "Kill": "coordinator.model.deadline",
    "Leave": "coordinator.model.deadline",
    "Watched": "coordinator.model.deadline",
    "OutcomeUnknown": "coordinator.model.retry",
    "Retry": "coordinator.model.retry",
    "RetryLater": "coordinator.model.retry",
    "AsyncRun": "workers.handlers.async_run",
    "ChildFailed": "workers.handlers.children",
    "Done": "workers.handlers.children",
    "Stopped": "workers.handlers.context",
    "current_run": "workers.handlers.context",
    "NotDone": "workers.handlers.effects",
    "Handler": "workers.handlers.handler",
    "Limit": "workers.handlers.limits",
    "ToolCall": "workers.handlers.messages",
    "Left": "workers.handlers.migration",
    "Registry": "workers.handlers.registry",
    "Run": "workers.handlers.run",
    "Signal": "workers.handlers.waits",
    "WaitTimeout": "workers.handlers.waits",
}

if not TYPE_CHECKING:  # a type checker that sees __getattr__ would accept every name
    __getattr__, __dir__ = lazy_names(__name__, _MODULES)
