"""An entry of the table of routes: the parameters and the body of a request, its answers, and the function that handles it.

The application checks requests against the entry, and the OpenAPI document is written from it. So both always agree.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

if TYPE_CHECKING:
    from coordinator.web.rest.call import Call

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a request.

    Attributes:
        name: Its name.
        place: The part of the request that contains it: `path`, `query` or `header`.
        schema: Its JSON schema. A default is used if the parameter is missing.
        text: Its description.
    """

    name: str
    place: str
    schema: Schema
    text: str


@dataclass(frozen=True, slots=True)
class Body:
    """The JSON body of a request.

    Attributes:
        schema: Its JSON schema.
        text: Its description.
        required: True if a request without a body is refused.
    """

    schema: Schema
    text: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """A successful answer.

    Attributes:
        text: The case in which this answer is given.
        schema: The JSON schema of its body; None if it has no body.
        media: The media type of its body.
    """

    text: str
    schema: Schema | None = None
    media: str = "application/json"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One operation of the API.

    Attributes:
        method: The HTTP method.
        path: The path, with `{…}` for parameters.
        name: The name of the operation.
        text: What the operation does, in one sentence.
        call: The function that answers a request.
        answers: The successful answers by status.
        problems: The statuses of the problem documents that the operation may answer, with their reasons.
        parameters: The parameters, without the run's id, which every path with `{id}` has.
        body: The body of a request; None if it has none.
        changes: True if the operation changes runs, so that the caller needs the role `all`.
    """

    method: str
    path: str
    name: str
    text: str
    call: Callable[[Call], Awaitable[Response]]
    answers: Mapping[int, Answer]
    problems: Mapping[int, str] = field(default_factory=dict)
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    changes: bool = False
