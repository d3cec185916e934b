"""The table of routes: every operation of the API. The application and the OpenAPI document are made from it."""

from __future__ import annotations

from coordinator.web.rest import events, runs
from coordinator.web.rest.endpoint import Answer, Body, Endpoint, Parameter
from coordinator.web.rest.schemas import (
    ANY,
    COUNT,
    EVENT_ID,
    FLAG,
    KEY,
    NAME,
    OBJECT,
    OPTIONS,
    RUN,
    RUN_ID,
    SECONDS,
    STATUS,
    STREAMED_EVENT,
    STRING,
    array,
    optional,
    record,
)

ID = Parameter("id", "path", STRING, "The id of the run.")

_TOPIC = Parameter("topic", "path", NAME, "The topic that the handler receives.")
_KEY = Parameter("Idempotency-Key", "header", KEY, "A request with the same key is carried out once.")
_STATUS_OF_RUN = record({"id": RUN_ID, "status": STATUS})
_NO_RUN = {404: "`NotFound`: there is no such run."}
_BODY_PROBLEMS = {
    413: "`TooLarge`: the body or a value in it is too large.",
    415: "The body is not JSON.",
    507: "`ServerFull`: the memory of the server is full.",
}

ROUTES: tuple[Endpoint, ...] = (
    Endpoint(
        "POST",
        "/runs",
        "enqueue",
        "Enqueue a run.",
        runs.enqueue,
        {
            201: Answer("The run was enqueued.", record({"id": RUN_ID, "created": FLAG})),
            200: Answer("A run with this key exists already.", record({"id": RUN_ID, "created": FLAG})),
        },
        {409: "`KeyConflict`: the key belongs to a run with another kind or other inputs.", **_BODY_PROBLEMS},
        (_KEY,),
        Body(record({"kind": NAME}, {"inputs": OBJECT, "options": OPTIONS}), "The run.", required=True),
        changes=True,
    ),
    Endpoint(
        "GET",
        "/runs",
        "list",
        "List runs. Ended runs come in the reverse order of their ends, others in the order in which they will continue.",
        runs.list_runs,
        {
            200: Answer(
                "A page of runs, which may have fewer runs than `limit`, or none. The last page has no cursor.",
                record({"runs": array(RUN), "cursor": optional(STRING)}),
            )
        },
        parameters=(
            Parameter("status", "query", STATUS, "Only runs with this status."),
            Parameter("kind", "query", NAME, "Only runs of this kind."),
            Parameter("queue", "query", NAME, "Only runs of this queue."),
            Parameter("cursor", "query", STRING, "The cursor of the page before, with the same filters."),
            Parameter(
                "limit", "query", {"type": "integer", "minimum": 1, "maximum": 500, "default": 50}, "Number of runs."
            ),
        ),
    ),
    Endpoint(
        "GET",
        "/runs/{id}",
        "show",
        "Show one run.",
        runs.show,
        {200: Answer("The run.", RUN)},
        _NO_RUN,
    ),
    Endpoint(
        "GET",
        "/runs/{id}/result",
        "result",
        "Wait for the end of a run, and answer with its result.",
        runs.result,
        {
            200: Answer("The run has completed.", record({"id": RUN_ID, "status": STATUS, "result": ANY})),
            202: Answer("The run has not ended yet.", _STATUS_OF_RUN),
        },
        {
            **_NO_RUN,
            409: "`RunFailed`, `RunDead` or `RunCancelled`: the run ended without a result.",
            429: "`TooManyWaits`: the caller has too many requests that wait.",
        },
        (
            Parameter(
                "wait",
                "query",
                {"type": "number", "minimum": 0, "maximum": 3600, "default": 0},
                "Seconds to wait for the end of the run. The server waits for at most its own limit, 60 seconds by default.",
            ),
        ),
    ),
    Endpoint(
        "GET",
        "/runs/{id}/messages",
        "messages",
        "Read the saved messages of a run's transcript. A completed run has none, unless its handler keeps them.",
        runs.messages,
        {
            200: Answer(
                "A page of messages. `next` is the number of the message after it; `more` is true if it is saved already.",
                record({"messages": array(ANY), "next": COUNT, "more": FLAG}),
            )
        },
        {**_NO_RUN, 409: "`Changed`: the handler has replaced its transcript meanwhile. Read again from 0."},
        (
            Parameter(
                "start",
                "query",
                {"type": "integer", "minimum": 0, "maximum": 10**9, "default": 0},
                "The number of the first message.",
            ),
            Parameter(
                "limit",
                "query",
                {"type": "integer", "minimum": 1, "maximum": 500, "default": 100},
                "Number of messages. A page ends earlier after about 1 MiB.",
            ),
        ),
    ),
    Endpoint(
        "POST",
        "/runs/{id}/cancel",
        "cancel",
        "Cancel a run.",
        runs.cancel,
        {
            200: Answer(
                "`cancelled`; `running` if its worker was asked to stop it; or how it had ended.", _STATUS_OF_RUN
            )
        },
        {**_NO_RUN, 409: "`Changed`: the run was revived meanwhile.", **_BODY_PROBLEMS},
        body=Body(record({}, {"grace": SECONDS}), "`grace`: seconds that the handler has to stop."),
        changes=True,
    ),
    Endpoint(
        "POST",
        "/runs/{id}/revive",
        "revive",
        "Queue a failed, dead or cancelled run again.",
        runs.revive,
        {200: Answer("The run is queued.", _STATUS_OF_RUN)},
        {**_NO_RUN, 409: "`Changed` or `KeyConflict`: the run can't be revived.", **_BODY_PROBLEMS},
        body=Body(record({}, {"from_start": FLAG}), "`from_start`: drop the checkpoint."),
        changes=True,
    ),
    Endpoint(
        "POST",
        "/runs/{id}/signals/{topic}",
        "send",
        "Send a signal to a run. The body is the payload.",
        runs.send_signal,
        {
            200: Answer(
                "The signal is stored; `sent` is false if a signal with this key was sent before.",
                record({"id": RUN_ID, "topic": NAME, "sent": FLAG}),
            )
        },
        {
            **_NO_RUN,
            409: "`Ended`: the run has ended.",
            429: "`Full`: the run has too many signals that it has not received.",
            **_BODY_PROBLEMS,
        },
        (_TOPIC, _KEY),
        Body(ANY, "The payload: any JSON value."),
        changes=True,
    ),
    Endpoint(
        "GET",
        "/runs/{id}/events",
        "events",
        "Stream the output of a run as server-sent events, until the run has ended.",
        events.stream_events,
        {
            200: Answer(
                "An event without a name has `number`, `value`, `note` and `at`; `rewind` has `to`, `gap` has `count`, "
                "and `end` has `status`.",
                STREAMED_EVENT,
                "text/event-stream",
            ),
            204: Answer("The caller has got the event `end` of this run already: its Last-Event-ID says so."),
        },
        {**_NO_RUN, 429: "`TooManyStreams`: the caller has too many open streams."},
        (
            Parameter(
                "Last-Event-ID", "header", EVENT_ID, "Continue after the event with this id. A browser sends it."
            ),
            Parameter("after", "query", EVENT_ID, "The same, for a request without the header."),
            Parameter(
                "settled",
                "query",
                {**FLAG, "default": False},
                "Only events that a checkpoint covers: none is taken back.",
            ),
        ),
    ),
)
