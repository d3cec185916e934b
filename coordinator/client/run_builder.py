"""Build the runs of an enqueue call from inputs and options, without I/O.

Arguments that are not valid are refused here, before the first byte is sent. Options are checked once for each call, however many
runs the call enqueues. Each run is encoded once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypedDict

from coordinator.client.parent import Parent
from coordinator.encoding.codec import encode
from coordinator.encoding.spec import digest_inputs, encode_spec
from coordinator.errors import BadOption, NotPlain
from coordinator.middleware import HEADERS, NO_MIDDLEWARE, EnqueueInfo, MiddlewareChain
from coordinator.model.enqueue import Inputs, Options
from coordinator.model.names import name, route
from coordinator.model.policies.budget import Budget
from coordinator.model.policies.groups import check_group, compute_group
from coordinator.model.run_id import RunIds, is_run_id, partition_for, partition_of
from coordinator.store.plans.clients import NewRun

META_LIMIT = 64 * 1024
BATCH_RUNS = 500
BATCH_BYTES = 1024 * 1024

DURATIONS = ("delay", "expires", "key_ttl", "retention")

_END_OF_GROUP = "\x1f"  # between the group and the idempotency key in `once`; the name of a group is printable

KeyOf = Callable[[Mapping[str, Any]], str]


class _SharedOptions(TypedDict, total=False):
    queue: str
    priority: int
    delay: float | timedelta | None
    at: float | datetime | None
    expires: float | timedelta | None
    key_ttl: float | timedelta | None
    retention: float | timedelta | None
    schema: int
    parent: str | None
    meta: Mapping[str, Any] | None
    budget: Budget | None


class EnqueueOptions(_SharedOptions, total=False):
    """The options of `enqueue`.

    `id` is for a call that is repeated after `Unconfirmed`: one of the error's `ids`.
    """

    key: str | None
    group: str | None
    id: str | None


class EnqueueManyOptions(_SharedOptions, total=False):
    """The options of `enqueue_many`.

    `key` computes the idempotency key of a run from its inputs. `group` is the group of all runs, or computes the group of a run
    from its inputs. `ids` is for a call that is repeated after `Unconfirmed`: the error's `ids`, with the same inputs in the same
    order.
    """

    key: KeyOf | None
    group: str | KeyOf | None
    ids: Sequence[str]


class RunRequest(NamedTuple):
    """A run to enqueue, complete except for its id.

    Attributes:
        route: The route of the run: queue, kind and schema.
        spec: The encoded inputs, meta and extra values.
        once: The idempotency key; empty without one. For a run with a group it begins with the group, because keys are unique
            within a group.
        digest: A digest of the inputs, by which the server notices that a key is used with other inputs; empty without a key.
        handler: The handler that made the inputs; None if the caller named only the kind.
        group: The group of the run; empty without one.
    """

    route: str
    spec: bytes
    once: str
    digest: str
    handler: object = None
    group: str = ""

    @property
    def placed_by(self) -> str:
        """The text that determines the partition of the run: its group or its idempotency key. Empty: any partition."""
        return self.group or self.once


class RunBuilder:
    """A builder of runs, with the options of one enqueue call."""

    def __init__(
        self, given: Mapping[str, Any], parent: Parent | None = None, middleware: MiddlewareChain = NO_MIDDLEWARE
    ) -> None:
        """Check and store the options.

        Args:
            given: The options of the call, without `key`, `group`, `id` and `ids`.
            parent: The run whose handler makes the call, if any. The new runs get its id and meta unless `given` has a parent.
            middleware: The middleware that is called for each run.

        Raises:
            BadOption: A value is not valid.
            TypeError: There is no such option.
        """
        self._options = options = _check(given, parent)
        self._middleware = middleware or None
        self._routes: dict[str, str] = {}
        self._meta = dict(options.meta)
        if self._meta:
            encode(self._meta, "meta", META_LIMIT)
        self._extra: dict[str, Any] = {}
        if options.parent:
            self._extra["parent"] = options.parent
        if options.priority:
            self._extra["priority"] = options.priority
        if options.budget is not None:
            self._extra["budget"] = options.budget.pack()
        # The fields that all runs of this call share, in the order of NewRun.
        self._timing = (options.priority, _due(options), _ms(options.expires))
        self._keeping = (_ms(options.key_ttl) or "-", _ms(options.retention), options.parent or "")

    def request(
        self,
        kind: str,
        values: Mapping[str, Any],
        key: str | None = None,
        handler: object = None,
        group: str | KeyOf | None = None,
    ) -> RunRequest:
        """Return a request for one run.

        Args:
            kind: The kind of the run.
            values: Its inputs.
            key: Its idempotency key, if any.
            handler: The handler that made the inputs, if any. Its `group_by` computes the group, unless `group` is given.
            group: Its group, or a function that computes the group from the inputs.

        Raises:
            BadName: The kind is not a name.
            BadOption: The key or the group is not valid.
            NotPlain: An input can't be stored.
            TooLarge: The inputs are too large.
        """
        waits_in = self._routes.get(kind) or self._route(kind)
        inputs = values if type(values) is dict else _as_dict(values)
        check_names(kind, inputs)
        middleware = self._middleware
        extra = self._extra if middleware is None else self._with_headers(middleware, kind, inputs, key)
        by = group if group is not None else None if handler is None else getattr(handler, "group_by", None)
        if by is not None:
            return self._grouped_request(waits_in, inputs, extra, key, handler, _group_of(kind, inputs, group, by))
        if key is None:
            return RunRequest(waits_in, encode_spec(inputs, self._meta, extra), "", "", handler)
        once = check_key(key)
        spec = encode_spec(inputs, self._meta, {**extra, "key": once})
        return RunRequest(waits_in, spec, once, digest_inputs(inputs), handler)

    def _grouped_request(
        self,
        waits_in: str,
        inputs: dict[str, Any],
        others: Mapping[str, Any],
        key: str | None,
        handler: object,
        group: str,
    ) -> RunRequest:
        extra = {**others, "group": group}
        if key is None:
            return RunRequest(waits_in, encode_spec(inputs, self._meta, extra), "", "", handler, group)
        spec = encode_spec(inputs, self._meta, {**extra, "key": check_key(key)})
        return RunRequest(waits_in, spec, f"{group}{_END_OF_GROUP}{key}", digest_inputs(inputs), handler, group)

    def _with_headers(
        self, middleware: MiddlewareChain, kind: str, inputs: dict[str, Any], key: str | None
    ) -> dict[str, Any]:
        """Return the extra values of a run with the headers that middleware adds."""
        options = self._options
        info = EnqueueInfo(kind, options.queue, inputs, self._meta, key, options.parent)
        headers = middleware.headers(info)
        return {**self._extra, HEADERS: headers} if headers else self._extra

    def _route(self, kind: str) -> str:
        made = self._routes[kind] = route(self._options.queue, name(kind, "kind"), self._options.schema)
        return made

    def runs(
        self, requests: Sequence[RunRequest], ids: RunIds, now: float, partitions: int, given: Sequence[str] = ()
    ) -> list[NewRun]:
        """Return the requests as runs with ids.

        Args:
            requests: The requests.
            ids: The maker of new ids.
            now: The Unix time in seconds that new ids begin with.
            partitions: The number of partitions of the namespace.
            given: Ids for the first of the requests. The others get new ids.
        """
        timing, keeping = self._timing, self._keeping
        runs = []
        for index, (waits_in, spec, once, digest, _, group) in enumerate(requests):
            if index < len(given):
                id = given[index]
            elif once or group:
                id = ids.make(now, partition_for(group or once, partitions))
            else:
                id = ids.make(now, 0 if partitions == 1 else int(random.random() * partitions))
            runs.append(NewRun(id, waits_in, spec, *timing, once, digest, *keeping, group))
        return runs


def batches(requests: Iterable[RunRequest]) -> Iterator[list[RunRequest]]:
    """Yield the requests in batches of up to 500 runs and 1 MiB. A larger request is a batch of its own."""
    batch: list[RunRequest] = []
    size = 0
    for request in requests:
        more = len(request.spec)
        if batch and (len(batch) >= BATCH_RUNS or size + more > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(request)
        size += more
    if batch:
        yield batch


def as_inputs(what: object, values: Mapping[str, Any] | None = None) -> Inputs[Any]:
    """Return the kind and the inputs of a run in one object.

    Args:
        what: `handler.inputs(…)`, a handler, or a kind.
        values: The inputs, where `what` is a handler or a kind.

    Raises:
        BadOption: `what` is a plain function, or inputs are given twice.
        NotPlain: The inputs are not a dict.
        Refused: The inputs do not fit the handler.
    """
    if isinstance(what, Inputs):
        if values is not None:
            raise BadOption(f"the inputs of {what.kind!r} are given twice: in handler.inputs(…) and as a dict")
        return what
    if isinstance(what, str):
        return Inputs(what, {} if values is None else values)
    make = getattr(what, "inputs", None)
    if not callable(make) or not isinstance(getattr(what, "kind", None), str):
        if callable(what):
            raise BadOption(f"{what!r:.80} is a function and not a handler: decorate it with @runs.handler")
        return Inputs(what, values or {})  # type: ignore[arg-type]  # it is refused as a kind
    made: Inputs[Any] = make(**check_names(what.kind, {} if values is None else _as_dict(values)))  # type: ignore[attr-defined]
    return made


def inputs_of_item(item: object) -> Inputs[Any]:
    """Return the kind and the inputs of one element of `enqueue_many`.

    Raises:
        BadOption: The element is neither `handler.inputs(…)` nor a pair of a kind or handler and its inputs.
    """
    if isinstance(item, Inputs):
        return item
    if isinstance(item, tuple) and len(item) == 2:
        return as_inputs(*item)
    raise BadOption(f"{item!r:.80} is neither handler.inputs(…) nor (kind, inputs)")


def check_key_ttl(options: Mapping[str, Any]) -> None:
    """Check that `key_ttl` is given together with `key`.

    Raises:
        BadOption: `key_ttl` is given without `key`, so it would have no effect.
    """
    if options.get("key_ttl") is not None and options.get("key") is None:
        raise BadOption("key_ttl has no effect without key: give a key, or leave key_ttl out")


def check_names(kind: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs if all their names are text.

    Raises:
        NotPlain: A name is not text.
    """
    for field in inputs:
        if type(field) is not str:
            raise NotPlain(f"inputs of {kind!r} have the name {field!r}: names of inputs are text")
    return inputs


def check_given_ids(ids: Sequence[str], requests: Sequence[RunRequest], partitions: int) -> Sequence[str]:
    """Return the given ids, which come from an earlier call that was not confirmed, if they fit the requests.

    Raises:
        BadOption: A text is not a run id, or the partition of an id is not the partition that the group or the key of its request
            determines.
    """
    for id, request in zip(ids, requests, strict=False):
        if not is_run_id(str(id)):
            raise BadOption(
                f"id {id!r:.100} is not a run id: `id` only repeats a call that raised Unconfirmed; "
                "to find a run by a name of your own, give key=…"
            )
        if request.placed_by and partition_of(id, partitions) != partition_for(request.placed_by, partitions):
            what = "group" if request.group else "key"
            raise BadOption(
                f"id {id!r} is not in the partition of {what} {request.placed_by!r}: the id belongs to another call"
            )
    return ids


def _group_of(kind: str, inputs: dict[str, Any], given: object, group_by: Any) -> str:
    """Return the group of a run: the given one, or the one that `group_by` computes."""
    if given is None or callable(given):
        return compute_group(group_by, kind, inputs)
    return check_group(given)


def _as_dict(values: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        raise NotPlain(f"inputs must be a dict of names and values, not {type(values).__name__}")
    return dict(values)


# ---- options ---------------------------------------------------------------------------------------------------------


def _check(given: Mapping[str, Any], parent: Parent | None) -> Options:
    """Return the checked options. If no parent is given, the options have the id and meta of `parent`.

    Raises:
        BadOption: A value is not valid.
        TypeError: There is no such option.
    """
    options = {field: value for field, value in given.items() if field != "meta" or value is not None}
    at = options.get("at")
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise BadOption("at is a datetime without a time zone: give one, as in datetime(…, tzinfo=UTC)")
        options["at"] = at.timestamp()
    for field in DURATIONS:
        if isinstance(duration := options.get(field), timedelta):
            options[field] = duration.total_seconds()
    if parent is not None and options.get("parent") is None:
        options["parent"] = parent.run
        options["meta"] = {**parent.meta, **options.get("meta", {})}
    try:
        checked = Options(**options)
    except TypeError:
        known = [field.name for field in fields(Options)]
        if unknown := sorted(options.keys() - known):
            raise TypeError(f"there is no option {unknown[0]!r}: there are {', '.join(known)}, group and key") from None
        raise
    if checked.parent is not None and not is_run_id(checked.parent):
        raise BadOption(f"parent {checked.parent!r} is not a run id")
    return checked


def check_key(key: str) -> str:
    """Return the idempotency key if it is valid.

    Raises:
        BadOption: The key is not text of 1 to 512 characters, or can't be encoded as UTF-8.
    """
    if type(key) is not str or not 1 <= len(key) <= 512:
        raise BadOption(f"key {key!r:.80} is not text of 1 to 512 characters")
    try:
        key.encode()
    except UnicodeEncodeError:
        raise BadOption(f"key {key!r:.80} has lone surrogates, which can't be stored") from None
    return key


def _due(options: Options) -> str:
    if options.delay:
        return f"+{round(options.delay * 1000)}"
    return "" if options.at is None else str(round(options.at * 1000))


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else str(round(seconds * 1000))


def without(options: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return a copy of the options without the options of these names."""
    return {option: value for option, value in options.items() if option not in names}
