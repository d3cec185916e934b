"""Keys: one class, and a Lua function that builds the same key for each of its methods."""

from __future__ import annotations

import inspect
import re

import pytest

from coordinator.errors import BadCall, BadName
from coordinator.store.generated_lua import lua_keys
from coordinator.store.keys import Keys, Namespace, type_of_key

METHODS = {name: method for name, method in inspect.getmembers(Keys, inspect.isfunction) if not name.startswith("_")}


def in_lua(function: str, at: str, arguments: list[str]) -> str:
    """Return the value of a Lua function that only concatenates strings."""
    found = re.fullmatch(r"local function \w+\(([^)]*)\) return (.*) end", function)
    assert found is not None
    names = [name for name in found[1].split(", ") if name]
    values = {"TAG": at, **dict(zip(names, arguments, strict=True))}
    return "".join(part[1:-1] if part.startswith("'") else values[part] for part in found[2].split(" .. "))


@pytest.mark.parametrize("name", METHODS)
def test_lua_builds_the_same_key(name: str) -> None:
    keys = Keys("runs", 3)
    arguments = [f"<{parameter}>" for parameter in list(inspect.signature(METHODS[name]).parameters)[1:]]
    assert in_lua(lua_keys()[f"{name}_key"].source, keys.at, arguments) == METHODS[name](keys, *arguments)


@pytest.mark.parametrize("name", METHODS)
def test_lua_builds_the_same_key_when_it_is_inlined(name: str) -> None:
    keys = Keys("runs", 3)
    names = [f"given{number}" for number in range(len(inspect.signature(METHODS[name]).parameters) - 1)]
    written = f"local function f({', '.join(names)}) return {lua_keys()[f'{name}_key'].of(names)[1:-1]} end"
    arguments = [f"<{name}>" for name in names]
    assert in_lua(written, keys.at, arguments) == METHODS[name](keys, *arguments)
    with pytest.raises(BadCall):
        lua_keys()[f"{name}_key"].of([*names, "another"])


def test_lua_has_a_function_for_each_key_method_and_no_other() -> None:
    assert set(lua_keys()) == {f"{name}_key" for name in METHODS}


@pytest.mark.parametrize("name", METHODS)
def test_key_documents_its_type_and_content(name: str) -> None:
    assert re.match(r"Return the key of a (hash|set|sorted set|list|string|stream) \S+", METHODS[name].__doc__ or "")
    assert type_of_key(METHODS[name]) in {"hash", "set", "zset", "list", "string", "stream"}


def test_keys_of_a_partition_share_one_hash_tag_and_are_distinct() -> None:
    keys = Keys("runs", 3)
    built = [method(keys, *["x"] * (len(inspect.signature(method).parameters) - 1)) for method in METHODS.values()]
    assert all(key.startswith("{runs:3}:") for key in built)
    assert len(set(built)) == len(built)


def test_bells_of_routes_with_any_names_are_distinct() -> None:
    keys = Keys("runs", 0)
    routes = ["coordinator:k@0", "suspect:k@0", "q:suspect@0", "q:k@1"]
    bells = [keys.coordinator_bell(), *map(keys.bell, routes), *map(keys.suspect_bell, routes)]
    assert len(set(bells)) == len(bells)


@pytest.mark.parametrize("name", ["", "a b", "a{b", "a:b", "x" * 101, "ä"])
def test_namespace_name_is_checked(name: str) -> None:
    with pytest.raises(BadName):
        Keys(name, 0)


def test_run_id_leads_to_its_partition() -> None:
    namespace = Namespace("runs", partitions=4)
    assert namespace.keys_of("00000000000000000001-03").at == "{runs:3}"
    assert [keys.partition for keys in namespace.everywhere()] == [0, 1, 2, 3]
    with pytest.raises(BadName, match="names partition 4, and the namespace has 4"):
        namespace.keys_of("00000000000000000001-04")
