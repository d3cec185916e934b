"""Check that the places and lines of groups agree with the runs."""

from __future__ import annotations

from tests.lua.store import Store


def places_of(store: Store) -> dict[str, set[str]]:
    """Return the runs that have a place, by group."""
    return _read_sets(store, "admitted", "smembers")


def find_wrong_places(store: Store) -> list[str]:
    """Return a sentence for each place or entry of a line that does not agree with the runs."""
    admitted, lines = places_of(store), _read_sets(store, "line", "zrange", 0, -1)
    claimable = set[str]()
    for family in ("ready", "suspect"):
        claimable = claimable.union(*_read_sets(store, family, "zrange", 0, -1).values())
    expected, waiting = dict[str, set[str]](), dict[str, set[str]]()
    runs = [key.decode() for key in store.client.scan_iter(f"{store.keys.run('')}*", count=10_000)]
    with store.client.pipeline(transaction=False) as trip:
        for key in runs:
            trip.hmget(key, "group", "status")
        rows = trip.execute()
    for key, (label, stored) in zip(runs, rows, strict=True):
        id, group, status = key.rpartition(":")[2], (label or b"").decode(), (stored or b"").decode()
        if group and (status == "running" or (status == "queued" and id in claimable)):
            expected.setdefault(group, set()).add(id)
        elif group and status == "queued":
            waiting.setdefault(group, set()).add(id)
    wrong = []
    for what, found, right in (("places", admitted, expected), ("line", lines, waiting)):
        wrong += [
            f"{what} of {group}: {found.get(group)}, and not {right.get(group)}"
            for group in {*found, *right}
            if found.get(group, set()) != right.get(group, set())
        ]
    starting = _read_sets(store, "starting", "smembers")
    wrong += [
        f"group {group}: these runs hold a start and are not ready: {ids - admitted.get(group, set()) & claimable}"
        for group, ids in starting.items()
        if not ids <= admitted.get(group, set()) & claimable
    ]
    swept = store.members(store.keys.groups())
    return wrong + [f"group {group} has a line, and is not swept" for group in set(lines) - swept]


def _read_sets(store: Store, family: str, command: str, *arguments: int) -> dict[str, set[str]]:
    """Return the members of each set or sorted set of a family, by the rest of its name."""
    start = f"{store.keys.at}:{family}:"
    keys = [key.decode() for key in store.client.scan_iter(f"{start}*", count=10_000)]
    with store.client.pipeline(transaction=False) as trip:
        for key in keys:
            getattr(trip, command)(key, *arguments)
        found = trip.execute()
    return {key.removeprefix(start): {one.decode() for one in ids} for key, ids in zip(keys, found, strict=True)}
