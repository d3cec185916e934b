"""Durable runs on plain Redis or Valkey: the client, and the views and errors that clients and workers share."""

from coordinator.client.async_client import AsyncClient
from coordinator.client.client import Client
from coordinator.client.handles import AsyncHandle, Handle
from coordinator.encoding import seal
from coordinator.errors import (
    BadName,
    BadOption,
    Changed,
    CoordinatorError,
    Ended,
    Full,
    IdExpired,
    KeyConflict,
    NotConfigured,
    NotFound,
    NotPlain,
    Refused,
    ResultTimeout,
    RunCancelled,
    RunDead,
    RunFailed,
    ServerFull,
    TooLarge,
    TreeCancelled,
    Unconfirmed,
    Unreachable,
    Unreadable,
)
from coordinator.middleware import AttemptEnding, AttemptInfo, EnqueueInfo, Middleware, StepInfo
from coordinator.model.enqueue import Inputs
from coordinator.model.groups import GroupLimit
from coordinator.model.output import Event, Gap, Rewind
from coordinator.model.rates import RateLimit
from coordinator.model.run import Failure, HeldRun, Note, RunView, Status
from coordinator.model.schedule import ScheduleView
from coordinator.views.namespace_view import CoordinatorView, GroupView, Overview, WorkerView

__all__ = [
    "AsyncClient",
    "AsyncHandle",
    "AttemptEnding",
    "AttemptInfo",
    "BadName",
    "BadOption",
    "Changed",
    "Client",
    "CoordinatorError",
    "CoordinatorView",
    "Ended",
    "EnqueueInfo",
    "Event",
    "Failure",
    "Full",
    "Gap",
    "GroupLimit",
    "GroupView",
    "Handle",
    "HeldRun",
    "IdExpired",
    "Inputs",
    "KeyConflict",
    "Middleware",
    "NotConfigured",
    "NotFound",
    "NotPlain",
    "Note",
    "Overview",
    "RateLimit",
    "Refused",
    "ResultTimeout",
    "Rewind",
    "RunCancelled",
    "RunDead",
    "RunFailed",
    "RunView",
    "ScheduleView",
    "ServerFull",
    "Status",
    "StepInfo",
    "TooLarge",
    "TreeCancelled",
    "Unconfirmed",
    "Unreachable",
    "Unreadable",
    "WorkerView",
    "seal",
]
