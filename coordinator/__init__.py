"""Durable runs on plain Redis or Valkey: the client, and the views and errors that clients and workers share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.lazy import lazy_names

if TYPE_CHECKING:
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
    from coordinator.model.output import Event, Gap, Rewind
    from coordinator.model.policies.groups import GroupLimit
    from coordinator.model.policies.rates import RateLimit
    from coordinator.model.policies.schedule import ScheduleView
    from coordinator.model.run import Failure, HeldRun, Note, RunView, Status
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

_MODULES = {
    "AsyncClient": "coordinator.client.async_client",
    "Client": "coordinator.client.client",
    "AsyncHandle": "coordinator.client.handles",
    "Handle": "coordinator.client.handles",
    "seal": "coordinator.encoding",
    "BadName": "coordinator.errors",
    "BadOption": "coordinator.errors",
    "Changed": "coordinator.errors",
    "CoordinatorError": "coordinator.errors",
    "Ended": "coordinator.errors",
    "Full": "coordinator.errors",
    "IdExpired": "coordinator.errors",
    "KeyConflict": "coordinator.errors",
    "NotConfigured": "coordinator.errors",
    "NotFound": "coordinator.errors",
    "NotPlain": "coordinator.errors",
    "Refused": "coordinator.errors",
    "ResultTimeout": "coordinator.errors",
    "RunCancelled": "coordinator.errors",
    "RunDead": "coordinator.errors",
    "RunFailed": "coordinator.errors",
    "ServerFull": "coordinator.errors",
    "TooLarge": "coordinator.errors",
    "TreeCancelled": "coordinator.errors",
    "Unconfirmed": "coordinator.errors",
    "Unreachable": "coordinator.errors",
    "Unreadable": "coordinator.errors",
    "AttemptEnding": "coordinator.middleware",
    "AttemptInfo": "coordinator.middleware",
    "EnqueueInfo": "coordinator.middleware",
    "Middleware": "coordinator.middleware",
    "StepInfo": "coordinator.middleware",
    "Inputs": "coordinator.model.enqueue",
    "GroupLimit": "coordinator.model.policies.groups",
    "Event": "coordinator.model.output",
    "Gap": "coordinator.model.output",
    "Rewind": "coordinator.model.output",
    "RateLimit": "coordinator.model.policies.rates",
    "Failure": "coordinator.model.run",
    "HeldRun": "coordinator.model.run",
    "Note": "coordinator.model.run",
    "RunView": "coordinator.model.run",
    "Status": "coordinator.model.run",
    "ScheduleView": "coordinator.model.policies.schedule",
    "CoordinatorView": "coordinator.views.namespace_view",
    "GroupView": "coordinator.views.namespace_view",
    "Overview": "coordinator.views.namespace_view",
    "WorkerView": "coordinator.views.namespace_view",
}

if not TYPE_CHECKING:  # a type checker that sees __getattr__ would accept every name
    __getattr__, __dir__ = lazy_names(__name__, _MODULES)
