"""Define handlers for durable runs, and run them in worker processes.

A `Registry` holds the handlers, and each handler gets a `Run` or an `AsyncRun`. `workers.testing` helps to test handlers;
`workers.durable` offers checkpoints without workers and queues.
"""

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
