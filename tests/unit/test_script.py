"""The Lua files: every head says what its script does, and together they follow the law in run.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest

from coordinator.errors import BadCall
from coordinator.model.run import MOVES
from coordinator.store.keys import lua_keys
from coordinator.store.script import Script
from coordinator.store.scripts import SCRIPTS
from tests.lua.calls import PREPARE

LUA = files("coordinator.store") / "lua"
FILES = {entry.name.removesuffix(".lua"): entry.read_text() for entry in LUA.iterdir() if entry.name.endswith(".lua")}
PARTS = {name[1:]: source for name, source in FILES.items() if name.startswith("_")}
EVERY_SCRIPT = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)

KEYWORDS = {
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in",
    "local", "nil", "not", "or", "repeat", "return", "then", "true", "until", "while",
}  # fmt: skip
GLOBALS = {
    "redis",
    "string",
    "table",
    "math",
    "tonumber",
    "tostring",
    "type",
    "ipairs",
    "pairs",
    "unpack",
    "KEYS",
    "ARGV",
}


def without_comments(source: str) -> str:
    return re.sub(r"--.*", "", source)


def code(source: str) -> str:
    """The source without comments and strings."""
    return re.sub(r"'[^'\n]*'|\"[^\"\n]*\"", "''", without_comments(source))


def words(source: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", code(source)))


def defined(source: str) -> set[str]:
    return set(re.findall(r"^local (?:function )?([A-Za-z_]\w*)", source, re.M))


def test_every_file_is_a_script_and_every_script_a_file() -> None:
    assert sorted(script.name for script in SCRIPTS) == sorted(name for name in FILES if not name.startswith("_"))
    assert sorted(PREPARE) == sorted(script.name for script in SCRIPTS if not script.name.startswith("record_")), (
        "tests know a call of each; records have tests of their own"
    )


def test_the_heads_together_are_the_law() -> None:
    found: dict[tuple[str | None, str], set[str]] = {}
    for script in SCRIPTS:
        for move in script.head.get("Moves", ()):
            before, after = move.split(" -> ")
            found.setdefault((None if before == "none" else before, after), set()).add(script.name)
    assert found == {(before, after): set(by) for (before, after), by in MOVES.items()}


@EVERY_SCRIPT
def test_a_head_says_what_it_is_for(script: Script) -> None:
    lines = script.source.splitlines()
    assert re.fullmatch(rf"-- {script.name}: .+", lines[0])
    assert script.head["Answers"]
    ours = {
        "ARGV", "ITEM", "EACH", "Flags", "Uses", "Moves", "Answers", "Protects", "Unconfirmed", script.name,
    }  # fmt: skip
    assert set(re.findall(r"^-- ([A-Za-z]+): ", script.source, re.M)) <= ours, "a field that nobody reads"


@EVERY_SCRIPT
def test_what_a_head_names_is_used(script: Script) -> None:
    body = code(script.source)
    for argument in script.arguments:
        assert re.search(rf"\b{argument}\b", body), f"{argument} is given, and not used"
    if script.item_fields:
        bound = re.findall(r"local ([\w, ]+) = item\(", body)
        assert bound in ([], [", ".join(script.item_fields)])
        assert "item(" in body


@EVERY_SCRIPT
def test_a_part_that_is_named_is_used(script: Script) -> None:
    uses = list(script.head.get("Uses", ()))
    for place, part in enumerate(uses):
        users = script.source + "".join(PARTS[later] for later in uses[place + 1 :])
        assert defined(PARTS[part]) & words(users), f"nothing of _{part}.lua is used"


@EVERY_SCRIPT
def test_the_answers_are_those_of_the_head(script: Script) -> None:
    source = without_comments(script.source)
    said = set(re.findall(r"\{ '([a-z]+)'", source)) | set(re.findall(r"answers\[i\] = .*?'([a-z]+)' or '", source))
    listed = set(script.head["Answers"])
    statuses = {"completed"} if script.name == "trim" else set()  # a list of its own
    assert said - statuses <= listed, "an answer that the head does not list"
    everything = without_comments(script.text)
    missing = {word for word in listed if f"'{word}'" not in everything}
    assert missing == set(), "a word of the head that is nowhere answered"


def free_names(source: str) -> Iterator[str]:
    """Names that are neither locals of any kind, nor fields, nor keys of a table."""
    text = code(source)
    declared = set(GLOBALS)
    for names in re.findall(r"\blocal ((?:\w+(?:, )?)+)", text):
        declared |= set(names.split(", "))
    for name, parameters in re.findall(r"\bfunction ?(\w*)\(([^)]*)\)", text):
        declared |= {name, *(part.strip() for part in parameters.split(","))}
    for names in re.findall(r"\bfor ((?:\w+(?:, )?)+)", text):
        declared |= set(names.split(", "))
    depth = 0
    for match in re.finditer(r"[{}]|(?<![\w.:])[A-Za-z_]\w*", text):
        token = match[0]
        if token in "{}":
            depth += 1 if token == "{" else -1
            continue
        is_key = depth > 0 and re.match(r" = (?!=)", text[match.end() :])
        if token not in KEYWORDS and token not in declared and not is_key:
            yield token


@EVERY_SCRIPT
def test_no_script_touches_a_global_variable(script: Script) -> None:
    assert sorted(set(free_names(script.text_without_shebang))) == []
    assert re.findall(r"^(?!local )\s*function \w+", code(script.source), re.M) == []


def test_the_search_for_globals_finds_one() -> None:
    assert list(free_names("local a = { key = 1 }\nb = a\nreturn c.d")) == ["b", "c"]


@EVERY_SCRIPT
def test_a_script_has_no_key_or_argument_without_a_name(script: Script) -> None:
    assert not re.search(r"\b(KEYS|ARGV)\b", code(script.source))
    assert not re.search(r"\bTAG\b", script.source), "keys are built by the functions of keys.py"


@EVERY_SCRIPT
def test_only_what_is_needed_travels(script: Script) -> None:
    functions = {key.source for key in lua_keys().values()}
    sent = {name for name in lua_keys() if f"local function {name}(" in script.text}
    body = "".join(line + "\n" for line in script.text.split("\n") if line not in functions)
    assert sent == {name for name in lua_keys() if re.search(rf"\b{name}\b", code(body))}


@EVERY_SCRIPT
def test_keys_of_plain_names_are_written_out(script: Script) -> None:
    """A server makes every function anew for each call."""
    text, functions = code(script.text), {code(key.source) for key in lua_keys().values()}
    body = "\n".join(line for line in text.split("\n") if line not in functions)
    names = "|".join(name for name in lua_keys() if f"function {name}(" not in body)
    assert re.findall(rf"\b(?:{names})\([\w., ]*\)", body) == []


@EVERY_SCRIPT
def test_of_the_shared_parts_only_what_is_used_travels(script: Script) -> None:
    """A server makes every function anew for each call."""
    text = code(script.text)
    made = re.findall(r"^local function (\w+)|^local (\w+(?:, \w+)*)", text, re.M)
    names = [name for one, some in made for name in (one or some).split(", ")]
    arguments = {*script.arguments, "items", "item", "TAG"}
    assert [name for name in names if name not in arguments and len(re.findall(rf"\b{name}\b", text)) < 2] == []


def test_when_memory_is_full_only_enqueue_and_ordinary_saves_are_refused() -> None:
    refused = {script.name for script in SCRIPTS if not {"allow-oom", "no-writes"} & set(script.head.get("Flags", ()))}
    assert refused == {"enqueue", "fire", "schedule", "checkpoint", "note", "record_save"}


def test_only_what_the_server_knows_stands_in_the_first_line() -> None:
    for script in SCRIPTS:
        assert re.fullmatch(r"#!lua( flags=(allow-oom|no-writes))?", script.text.split("\n", 1)[0])
        assert script.text_without_shebang == script.text.split("\n", 1)[1]


def test_time_is_the_servers_in_every_script() -> None:
    for script in SCRIPTS:
        assert "'TIME'" not in script.source
        assert "os." not in code(script.source)
        assert "math.random" not in script.text
        if "now" in script.arguments:
            assert "server_ms(now)" in script.source, f"{script.name} trusts the caller's time"


def test_a_call_with_a_wrong_name_is_refused() -> None:
    lock = Script("lock")
    with pytest.raises(BadCall, match="lock wants lock, token, ttl; it was given lock, token"):
        lock.call("{t:0}", lock="l", token="t")
    with pytest.raises(BadCall, match="lock takes no items"):
        lock.call("{t:0}", [("item",)], lock="l", token="t", ttl=1)


def test_a_call_passes_by_name() -> None:
    lock = Script("lock")
    assert lock.call("{t:0}", ttl=3, token="t", lock="l").fixed == ("l", "t", 3)


def test_a_call_knows_the_run_that_it_is_about() -> None:
    for script in SCRIPTS:
        given: dict[str, Any] = dict.fromkeys(script.arguments, "x")
        assert script.call("{t:0}", **given).run == ("x" if "id" in script.arguments else None)


def test_names_in_the_parts_do_not_hide_those_of_a_head() -> None:
    """A part comes after the arguments: a function of the same name would take an argument's place."""
    for script in SCRIPTS:
        for part in script.head.get("Uses", ()):
            assert not defined(PARTS[part]) & set(script.arguments), f"_{part}.lua hides an argument of {script.name}"
