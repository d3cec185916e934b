"""The execution plane: handlers, and what runs them."""

from coordinator.deadline import Deadline, Extend, Kill, Leave, Watched
from coordinator.retry import Retry, RetryLater
from workers.context import AsyncRun, Run, Stopped
from workers.handler import Handler
from workers.messages import ToolCall
from workers.migration import Left
from workers.registry import Registry

__all__ = [
    "AsyncRun",
    "Deadline",
    "Extend",
    "Handler",
    "Kill",
    "Leave",
    "Left",
    "Registry",
    "Retry",
    "RetryLater",
    "Run",
    "Stopped",
    "ToolCall",
    "Watched",
]
