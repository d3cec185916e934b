"""Check that the places and lines of groups agree with the runs."""

from __future__ import annotations

from tests.lua.store import Store


def places_of(store: Store) -> dict[str, set[str]]:
    """Return the runs that have a place, by group."""
    return {
        key.split("}:admitted:", 1)[1]: value for key, (_, value, _) in store.dump().items() if "}:admitted:" in key
    }


def find_wrong_places(store: Store) -> list[str]:
    """Return a sentence for each place or entry of a line that does not agree with the runs."""
    wrong, admitted, lines, queued = [], dict[str, set[str]](), dict[str, set[str]](), dict[str, set[str]]()
    dump = store.dump()
    for key, (_, value, _) in dump.items():
        family, _, name = key.split("}:", 1)[1].partition(":")
        if family in ("ready", "suspect"):
            queued.setdefault("claimable", set()).update(value)
        elif family == "admitted":
            admitted[name] = set(value)
        elif family == "line":
            lines[name] = set(value)
    claimable = queued.get("claimable", set())
    expected, waiting = dict[str, set[str]](), dict[str, set[str]]()
    for key, (_, value, _) in dump.items():
        if "}:run:" not in key or value.get("group", b"") == b"":
            continue
        id, group, status = key.rpartition(":")[2], value["group"].decode(), value["status"].decode()
        if status == "running" or (status == "queued" and id in claimable):
            expected.setdefault(group, set()).add(id)
        elif status == "queued":
            waiting.setdefault(group, set()).add(id)
    for what, stored, right in (("places", admitted, expected), ("line", lines, waiting)):
        wrong += [
            f"{what} of {group}: {stored.get(group)}, and not {right.get(group)}"
            for group in {*stored, *right}
            if stored.get(group, set()) != right.get(group, set())
        ]
    swept = dump.get(store.keys.groups(), ("", set(), False))[1]
    wrong += [f"group {group} has a line, and is not swept" for group in set(lines) - set(swept)]
    return wrong
