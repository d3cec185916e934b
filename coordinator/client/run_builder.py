"""From what a producer says to what the server is sent: inputs and options in, NewRuns out. Pure, no I/O.

Everything that can be refused is refused here, before the first byte is written. Options are looked at once per call,
however many runs it makes; a run costs one encoding.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any, NamedTuple, TypedDict

from coordinator.client.parent import Parent
from coordinator.encoding.codec import encode
from coordinator.encoding.spec import digest_inputs, encode_spec
from coordinator.errors import BadOption, NotPlain
from coordinator.model.run import Inputs, Options, RunIds, is_run_id, name, partition_for, partition_of, route
from coordinator.store.plans.clients import NewRun

META_LIMIT = 64 * 1024
BATCH_RUNS = 500
BATCH_BYTES = 1024 * 1024

KeyOf = Callable[[Mapping[str, Any]], str]


class _SharedOptions(TypedDict, total=False):
    queue: str
    priority: int
    delay: float | None
    at: float | datetime | None
    expires: float | None
    key_ttl: float | None
    retention: float | None
    schema: int
    parent: str | None
    meta: Mapping[str, Any] | None


class EnqueueOptions(_SharedOptions, total=False):
    """The options of `enqueue`. `id` is for calling again after Unconfirmed: one of its `ids`."""

    key: str | None
    id: str | None


class EnqueueManyOptions(_SharedOptions, total=False):
    """The options of `enqueue_many`. `ids` is for calling again after Unconfirmed: its `ids`, with the same inputs."""

    key: KeyOf | None
    ids: Sequence[str]


class Draft(NamedTuple):
    """A run that lacks only its id."""

    route: str
    spec: bytes
    once: str
    digest: str


class Drafting:
    """Makes the runs of one call. `around` is the run whose handler makes it."""

    def __init__(self, given: Mapping[str, Any], around: Parent | None = None) -> None:
        self._options = options = _checked(given, around)
        self._routes: dict[str, str] = {}
        self._meta = dict(options.meta)
        if self._meta:
            encode(self._meta, "meta", META_LIMIT)
        self._extra: dict[str, Any] = {}
        if options.parent:
            self._extra["parent"] = options.parent
        if options.priority:
            self._extra["priority"] = options.priority
        # what all runs of this call share, in the order of NewRun
        self._timing = (options.priority, _due(options), _ms(options.expires))
        self._keeping = (_ms(options.key_ttl) or "-", _ms(options.retention), options.parent or "")

    def draft(self, kind: str, values: Mapping[str, Any], key: str | None = None) -> Draft:
        line = self._routes.get(kind) or self._line(kind)
        inputs = values if type(values) is dict else _as_dict(values)
        for field in inputs:
            if type(field) is not str:
                raise NotPlain(f"inputs of {kind!r} have the name {field!r}: names of inputs are text")
        if key is None:
            return Draft(line, encode_spec(inputs, self._meta, self._extra), "", "")
        once = _key(key)
        return Draft(line, encode_spec(inputs, self._meta, {**self._extra, "key": once}), once, digest_inputs(inputs))

    def _line(self, kind: str) -> str:
        line = self._routes[kind] = route(self._options.queue, name(kind, "kind"), self._options.schema)
        return line

    def runs(
        self, drafts: Sequence[Draft], ids: RunIds, now: float, partitions: int, given: Sequence[str] = ()
    ) -> list[NewRun]:
        """The drafts with their ids: those that are given, then new ones."""
        timing, keeping = self._timing, self._keeping
        runs = []
        for index, (line, spec, once, inputs_digest) in enumerate(drafts):
            if index < len(given):
                id = given[index]
            elif once:
                id = ids.make(now, partition_for(once, partitions))
            else:
                id = ids.make(now, 0 if partitions == 1 else int(random.random() * partitions))
            runs.append(NewRun(id, line, spec, *timing, once, inputs_digest, *keeping))
        return runs


def batches(drafts: Iterable[Draft]) -> Iterator[list[Draft]]:
    """Up to 500 at a time, and up to 1 MiB; a larger one goes alone."""
    batch: list[Draft] = []
    size = 0
    for draft in drafts:
        more = len(draft.spec)
        if batch and (len(batch) >= BATCH_RUNS or size + more > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(draft)
        size += more
    if batch:
        yield batch


def kind_and_values(one: object) -> tuple[str, Mapping[str, Any]]:
    """What one element of `enqueue_many` names."""
    if isinstance(one, Inputs):
        return one.kind, one.values
    if isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], str):
        return one[0], one[1]
    raise BadOption(f"{one!r:.80} is neither handler.inputs(…) nor (kind, inputs)")


def given_ids(ids: Sequence[str], drafts: Sequence[Draft], partitions: int) -> Sequence[str]:
    """Ids of an earlier call that was not confirmed; a key fixes the partition, so the id must be of that one."""
    for id, draft in zip(ids, drafts, strict=False):
        if partition_of(id, partitions) != partition_for(draft.once, partitions) and draft.once:
            raise BadOption(f"id {id!r} is not of the partition of key {draft.once!r}: it belongs to another call")
    return ids


def _as_dict(values: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        raise NotPlain(f"inputs must be a dict of names and values, not {type(values).__name__}")
    return dict(values)


# ---- options ---------------------------------------------------------------------------------------------------------


def _checked(given: Mapping[str, Any], around: Parent | None) -> Options:
    """The options, with what is handed on from the run around us."""
    options = {field: value for field, value in given.items() if field != "meta" or value is not None}
    at = options.get("at")
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise BadOption("at is a datetime without a zone: give one, as in datetime(…, tzinfo=UTC)")
        options["at"] = at.timestamp()
    if around is not None and options.get("parent") is None:
        options["parent"] = around.run
        options["meta"] = {**around.meta, **options.get("meta", {})}
    try:
        checked = Options(**options)
    except TypeError:
        known = [field.name for field in fields(Options)]
        if unknown := sorted(options.keys() - known):
            raise TypeError(f"there is no option {unknown[0]!r}: there are {', '.join(known)}") from None
        raise
    if checked.parent is not None and not is_run_id(checked.parent):
        raise BadOption(f"parent {checked.parent!r} is not a run id")
    return checked


def _key(key: str) -> str:
    if type(key) is not str or not 1 <= len(key) <= 512:
        raise BadOption(f"key {key!r:.80} is not text of 1 to 512 characters")
    try:
        key.encode()
    except UnicodeEncodeError:
        raise BadOption(f"key {key!r:.80} has lone surrogates, which can't be kept") from None
    return key


def _due(options: Options) -> str:
    if options.delay:
        return f"+{round(options.delay * 1000)}"
    return "" if options.at is None else str(round(options.at * 1000))


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else str(round(seconds * 1000))


def without(options: Mapping[str, Any], *fields: str) -> dict[str, Any]:
    """The options but these."""
    return {field: value for field, value in options.items() if field not in fields}
