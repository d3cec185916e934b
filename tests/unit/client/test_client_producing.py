"""Building new runs from inputs and options, without a server."""

from __future__ import annotations

import os
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.client.parent import Parent
from coordinator.client.run_builder import (
    BATCH_BYTES,
    BATCH_RUNS,
    RunBuilder,
    RunRequest,
    as_inputs,
    batches,
    inputs_of_item,
)
from coordinator.encoding.spec import digest_inputs, read_spec
from coordinator.errors import BadOption, NotPlain, Refused
from coordinator.model.run_id import RunIds, partition_for, partition_of
from workers import Registry, Run


@Registry().handler
def greet(run: Run, name: str) -> str:
    return name


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3) | st.tuples(inner)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), plain, max_size=4))
def test_digest_does_not_depend_on_the_order_of_names(inputs):
    turned = dict(reversed(inputs.items()))
    assert digest_inputs(inputs) == digest_inputs(turned) == digest_inputs(MappingProxyType(inputs))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"x": 1}, {"x": 2}),
        ({"x": 1}, {"x": 1.0}),
        ({"x": [1]}, {"x": (1,)}),
        ({"x": {}}, {"x": []}),
        ({"x": True}, {"x": 1}),
    ],
)
def test_digest_differs_for_different_inputs(a, b):
    assert digest_inputs(a) != digest_inputs(b)


def test_digest_is_the_same_after_a_round_trip_to_the_server():
    zone = timezone(timedelta(hours=2))
    inputs = {"when": datetime(2030, 1, 1, tzinfo=zone), "pair": (1, [2, {"b": 1, "a": b"x"}])}
    kept, _, _ = read_spec(RunBuilder({}).request("work", inputs).spec)
    assert digest_inputs(kept) == digest_inputs(inputs)


def test_request_of_a_handler_with_a_limit_needs_no_group_to_be_built():
    """A resumed parent builds the requests for its children again, also of those that are older than the limit of their handler."""
    runs = Registry()

    @runs.handler(at_once=2)
    def work(run: Run) -> None: ...

    assert RunBuilder({}).request("work", {}, None, work)


def test_spec_contains_only_given_values():
    parent = RunIds().make(1, 0)
    assert read_spec(RunBuilder({}).request("work", {"a": 1}).spec) == ({"a": 1}, {}, {})
    builder = RunBuilder({"parent": parent, "priority": 3, "meta": {"m": 1}})
    assert read_spec(builder.request("work", {}, "k").spec) == (
        {},
        {"m": 1},
        {"parent": parent, "priority": 3, "key": "k"},
    )


def test_times_are_sent_in_milliseconds():
    builder = RunBuilder({"delay": 1.5, "expires": 2, "key_ttl": 0, "retention": 0.25})
    (run,) = builder.runs([builder.request("work", {}, "k")], RunIds(), 1.0, 1)
    assert (run.due, run.expires, run.key_ttl, run.retention, run.once) == ("+1500", "2000", "0", "250", "k")
    at = datetime(2030, 1, 1, tzinfo=UTC)
    builder = RunBuilder({"at": at})
    (run,) = builder.runs([builder.request("work", {})], RunIds(), 1.0, 1)
    assert (run.due, run.key_ttl, run.expires, run.retention) == (str(round(at.timestamp() * 1000)), "-", "", "")


def test_runs_are_spread_over_partitions_and_a_key_determines_its_partition():
    builder = RunBuilder({})
    free = builder.runs([builder.request("work", {})] * 1000, RunIds(), 1.0, 4)
    assert min(Counter(partition_of(run.id, 4) for run in free).values()) > 150
    keyed = builder.runs([builder.request("work", {}, key) for key in "abcdef"], RunIds(), 1.0, 4)
    assert [partition_of(run.id, 4) for run in keyed] == [partition_for(run.once, 4) for run in keyed]


def test_child_inherits_parent_and_meta_that_are_not_given():
    parent = RunIds().make(1, 0)
    around = Parent(parent, {"a": 1, "b": 1})
    (run,) = (builder := RunBuilder({"meta": {"b": 2}}, around)).runs([builder.request("work", {})], RunIds(), 1.0, 1)
    assert (run.parent, read_spec(run.spec)[1]) == (parent, {"a": 1, "b": 2})
    other = RunIds().make(2, 0)
    assert read_spec(RunBuilder({"parent": other}, around).request("work", {}).spec)[1:] == ({}, {"parent": other})


def test_empty_meta_may_be_none():
    assert read_spec(RunBuilder({"meta": None}).request("work", {}).spec)[1] == {}


def test_unknown_option_is_a_type_error():
    with pytest.raises(TypeError, match="colour"):
        RunBuilder({"colour": "red"})


def test_key_of_513_characters_is_refused():
    RunBuilder({}).request("work", {}, "x" * 512)
    with pytest.raises(BadOption):
        RunBuilder({}).request("work", {}, "x" * 513)


def test_batches_are_limited_by_number_and_by_size():
    small = [RunRequest("r", b"x", "", "")] * (2 * BATCH_RUNS + 1)
    assert [len(batch) for batch in batches(small)] == [BATCH_RUNS, BATCH_RUNS, 1]
    large = [RunRequest("r", b"x" * (BATCH_BYTES // 2), "", ""), RunRequest("r", b"x" * (BATCH_BYTES + 1), "", "")] * 2
    assert [len(batch) for batch in batches(large)] == [1, 1, 1, 1]
    assert list(batches([])) == []


def test_forked_child_creates_its_own_ids():
    """Otherwise parent and child would continue from the same number within one millisecond."""
    ids = RunIds()
    ids.make(1.0, 0)
    ours, theirs = os.pipe()
    if (child := os.fork()) == 0:
        os.write(theirs, ids.make(1.0, 0).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(ours, 100).decode() != ids.make(1.0, 0)
    os.close(ours)
    os.close(theirs)


def test_ids_sort_by_time_and_then_by_creation_order():
    ids = RunIds()
    made = [ids.make(now, 0) for now in (1.0, 1.0, 1.0, 2.0, 1.5, 1.7e9, 1.7e9)]
    assert made == sorted(set(made))


@pytest.mark.parametrize("key", ["", "x" * 513, "\ud800", 7])
def test_key_must_be_text_of_1_to_512_characters(key):
    with pytest.raises(BadOption, match="key"):
        RunBuilder({}).request("work", {}, key)


def test_durations_may_be_timedeltas():
    builder = RunBuilder({"delay": timedelta(minutes=1), "expires": timedelta(hours=1), "retention": timedelta(days=1)})
    (run,) = builder.runs([builder.request("work", {})], RunIds(), 1.0, 1)
    assert (run.due, run.expires, run.retention) == ("+60000", "3600000", "86400000")
    with pytest.raises(BadOption, match="is not a time of 0 seconds"):
        RunBuilder({"delay": timedelta(seconds=-1)})


def test_a_handler_with_a_dict_is_the_same_as_its_inputs():
    made = as_inputs(greet, {"name": "moss"})
    assert (made.kind, made.values, made.handler) == ("greet", {"name": "moss"}, greet)
    assert inputs_of_item((greet, {"name": "moss"})) == made
    with pytest.raises(Refused, match="does not know 'colour'"):
        as_inputs(greet, {"name": "moss", "colour": 1})
    with pytest.raises(BadOption, match="given twice"):
        as_inputs(made, {"name": "moss"})
    with pytest.raises(NotPlain, match="not list"):
        as_inputs(greet, ["moss"])  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="is a function and not a handler"):
        as_inputs(print, {})
