"""Errors over HTTP: problem documents (RFC 9457) that contain the names of the library's errors."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from coordinator import errors
from coordinator.errors import CoordinatorError, RunFailed
from coordinator.printable import json_text

log = logging.getLogger(__name__)
MEDIA_TYPE = "application/problem+json"
TYPE = "urn:run-coordinator:error:"  # before the name of the error, in the field `type`
RETRY_AFTER = "1"  # seconds, for errors after which the same request may work

# The status of each error of the library. An error without an entry has the status of its base class.
STATUSES: Mapping[type[CoordinatorError], int] = {
    errors.BadName: 400,
    errors.BadOption: 400,
    errors.NotPlain: 400,
    errors.TooLarge: 413,
    errors.KeyConflict: 409,
    errors.IdExpired: 409,
    errors.TreeCancelled: 409,
    errors.Changed: 409,
    errors.Ended: 409,
    errors.Full: 429,
    errors.NotConfigured: 503,
    errors.ServerFull: 507,
    errors.Refused: 409,
    errors.NotFound: 404,
    errors.Unreachable: 503,
    errors.Unconfirmed: 504,
    errors.RunCancelled: 409,
    errors.RunDead: 409,
    RunFailed: 409,
    errors.ResultTimeout: 504,
    errors.BadCall: 500,
    errors.Unreadable: 500,
    CoordinatorError: 500,
}


class Problem(Exception):
    """An error of HTTP itself, such as a missing token. It becomes a problem document.

    Attributes:
        status: The HTTP status.
        error: The name of the error, as in the field `error` of the document.
        detail: A sentence that says what happened and what to do.
        headers: Further headers of the response.
        more: Further fields of the document.
    """

    def __init__(
        self,
        status: int,
        error: str,
        detail: str,
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.error, self.detail = status, error, detail
        self.headers, self.more = dict(headers or {}), dict(more or {})

    def response(self) -> Response:
        """Return the problem document as a response."""
        document = {
            "type": TYPE + self.error,
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "error": self.error,
            **self.more,
        }
        headers = {"Cache-Control": "no-store", **self.headers}
        return Response(json_text(document), self.status, headers, MEDIA_TYPE)


def problem_of(error: CoordinatorError) -> Problem:
    """Return the problem for an error of the library.

    A problem of the server (5xx) has the first sentence of the error's documentation as its detail: the message of the error may
    name hosts and keys that a caller must not see.
    """
    status = next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)
    name = type(error).__name__
    if status >= 500:
        sentence = (type(error).__doc__ or "").strip().partition("\n")[0].partition(". ")[0].rstrip(".")
        detail = f"{sentence}. The log of the web server says more."
        return Problem(status, name, detail, {"Retry-After": RETRY_AFTER} if status in (503, 504) else None)
    more: dict[str, Any] = {}
    if isinstance(error, RunFailed):
        more = {"run": error.run, "cause": {"type": error.type, "message": error.message}}
    return Problem(status, name, str(error), {"Retry-After": RETRY_AFTER} if status == 429 else None, more)


async def answer_error(request: Request, error: Exception) -> Response:
    """Answer a request with the problem document for an exception.

    Errors that the caller can't fix are logged, because the document does not contain their message.
    """
    if isinstance(error, Problem):
        return error.response()
    if isinstance(error, CoordinatorError):
        problem = problem_of(error)
        if problem.status >= 500:
            log.warning("request failed: %s %s: %s: %s", request.method, request.url.path, problem.error, error)
        return problem.response()
    if isinstance(error, HTTPException):
        phrase = HTTPStatus(error.status_code).phrase
        said = f"{error.detail}: {request.method} {request.url.path}"
        return Problem(error.status_code, phrase.replace(" ", ""), said, error.headers).response()
    return Problem(500, "InternalError", "The server has a bug: its log has the traceback.").response()


async def end_cut_request(request: Request, error: Exception) -> Response:
    """Log that a caller closed its connection before its whole request was received, and return an answer that is not sent."""
    log.info("request cut: %s %s: the caller has closed the connection", request.method, request.url.path)
    return Response(status_code=400)


HANDLERS: Mapping[Any, Any] = {
    **dict.fromkeys((Problem, CoordinatorError, HTTPException, Exception), answer_error),
    ClientDisconnect: end_cut_request,
}
