"""The Lua files: every header describes its script, and all headers together match the table of moves in run.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from coordinator.errors import BadCall
from coordinator.model.run import MOVES
from coordinator.store import scripts
from coordinator.store.formats import FIELDS
from coordinator.store.generated_lua import CONSTANTS, FUNCTIONS, expand, expressions, lua_keys
from coordinator.store.rights import ROLES
from coordinator.store.script import Script
from coordinator.store.scripts import SCRIPTS
from tests.lua.calls import PREPARE, PREPARE_EVERY

LUA = Path(str(files("coordinator.store"))) / "lua"
PARTS = {path.stem: path.read_text() for path in sorted(LUA.glob("shared/*.lua"))}
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
    """Return the source without comments and strings."""
    return re.sub(r"'[^'\n]*'|\"[^\"\n]*\"", "''", without_comments(source))


def words(source: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", code(source)))


def defined(source: str) -> set[str]:
    return set(re.findall(r"^local (?:function )?([A-Za-z_]\w*)", source, re.M))


def test_every_lua_file_is_a_script_or_a_shared_part() -> None:
    names = [path.stem for path in LUA.rglob("*.lua")]
    assert sorted(names) == sorted([*(script.name for script in SCRIPTS), *PARTS])
    assert len({script.name for script in SCRIPTS}) == len(SCRIPTS)
    assert sorted(PREPARE) == sorted(
        s.name for s in SCRIPTS if not s.name.startswith(("record_", "graph_", "session_"))
    ), "tests know a call of each; records and graphs have tests of their own"
    assert sorted(PREPARE_EVERY) == sorted(script.name for script in SCRIPTS)


def test_script_is_imported_under_its_name() -> None:
    assert scripts.ENQUEUE in SCRIPTS
    assert scripts.ENQUEUE.name == "enqueue"
    with pytest.raises(AttributeError, match=r"there is no Lua file nothing\.lua"):
        _ = scripts.NOTHING


@EVERY_SCRIPT
def test_header_names_existing_roles(script: Script) -> None:
    assert script.roles
    assert set(script.roles) <= set(ROLES)


@EVERY_SCRIPT
def test_header_names_the_keys_that_the_script_may_touch(script: Script) -> None:
    names = words(script.body)
    redirected = set(re.findall(r"local function (\w+)_key\(", script.body))  # to the keys of a record
    used = {name.removesuffix("_key") for name in lua_keys() if name in names} - redirected
    assert set(script.head.get("Keys", ())) == used


@EVERY_SCRIPT
def test_header_explains_every_argument(script: Script) -> None:
    for argument in (*script.arguments, *script.item_fields):
        assert re.search(rf"^--   {argument}: .+", script.source, re.M), f"{argument} is not explained"


def hash_calls(source: str) -> Iterator[tuple[str, list[str]]]:
    """Yield for each command on a hash the family of its key and the fields that are named as text."""
    begin = re.compile(r"(?:redis\.p?call|\btry)\('(H\w+)', (\w+)_key\([^()]*\)((?:, )?)")
    for found in begin.finditer(source):
        depth, end = 0, found.end()
        while depth >= 0:
            depth += {"(": 1, "{": 1, ")": -1, "}": -1}.get(source[end], 0)
            end += 1
        given = re.split(r",\s*(?![^()]*\))", source[found.end() : end - 1])
        if found[1] == "HSET":
            given = given[::2]
        yield found[2], [field[1:-1] for field in given if re.fullmatch(r"'\w+'", field)]


@EVERY_SCRIPT
def test_every_field_that_a_script_names_is_declared(script: Script) -> None:
    unknown = {
        (family, name) for family, names in hash_calls(script.body) for name in names if name not in FIELDS[family]
    }
    assert unknown == set(), "declare it in coordinator/store/formats.py"


def test_reader_of_an_unknown_field_is_refused() -> None:
    with pytest.raises(BadCall, match="colour is not declared as a field of run"):
        expand("local status, colour = read_fields(run_key(id), 'status', 'colour')")
    with pytest.raises(BadCall, match="colour is not declared as a field of worker"):
        expand("local worker = read_named(worker_key(id), 'lease',\n  'colour')")


def test_readers_and_constants_are_inlined() -> None:
    assert expand("if run.status == RUNNING and not is_ended(status) then").startswith(
        "if run.status == 'running' and not ("
    )
    assert expand("return 'RUNNING' -- RUNNING") == "return 'RUNNING' -- RUNNING"
    named = expand("local run = read_named(run_key(id), 'status', 'token')")
    assert named.endswith("run = not run.err and { status = run[1], token = run[2] } or nil")


@pytest.mark.parametrize("name", [*(script.name for script in SCRIPTS), *PARTS])
def test_statuses_and_reply_positions_are_named(name: str) -> None:
    source = without_comments(PARTS[name] if name in PARTS else Script(name).source)
    assert re.findall(r"\bstatus [=~]= '|'status', '\w+'\)", source) == []
    assert re.findall(r"\w\[[2-9]\d*\]|\bv\[1\]", source) == [], (
        "name the values: local a, b = unpack(…), read_fields, read_named"
    )


@pytest.mark.parametrize("name", [*(script.name for script in SCRIPTS), *PARTS])
def test_generated_names_are_not_shadowed(name: str) -> None:
    source = PARTS[name] if name in PARTS else Script(name).source
    generated = {*CONSTANTS, *expressions(), *defined(FUNCTIONS)}
    allowed = {"ckpt_key", "messages_key", "run_key", "effects_key"} if name == "record" else set()
    assert (defined(source) & generated) == allowed


def test_all_headers_together_match_the_table_of_moves() -> None:
    found: dict[tuple[str | None, str], set[str]] = {}
    for script in SCRIPTS:
        for move in script.head.get("Moves", ()):
            before, after = move.split(" -> ")
            found.setdefault((None if before == "none" else before, after), set()).add(script.name)
    assert found == {(before, after): set(by) for (before, after), by in MOVES.items()}


@EVERY_SCRIPT
def test_header_describes_the_purpose_of_the_script(script: Script) -> None:
    lines = script.source.splitlines()
    assert re.fullmatch(rf"-- {script.name}: .+", lines[0])
    assert script.head["Answers"]
    ours = {
        "Role", "Keys", "ARGV", "ITEM", "EACH", "Flags", "Uses", "Moves", "Answers", "Protects", "Unconfirmed", script.name,
    }  # fmt: skip
    assert set(re.findall(r"^-- ([A-Za-z]+): ", script.source, re.M)) <= ours, "a field that nobody reads"


@EVERY_SCRIPT
def test_everything_named_in_a_header_is_used(script: Script) -> None:
    body = code(script.source)
    for argument in script.arguments:
        assert re.search(rf"\b{argument}\b", body), f"{argument} is given, and not used"
    if script.item_fields:
        bound = re.findall(r"local ([\w, ]+) = item\(", body)
        assert bound in ([], [", ".join(script.item_fields)])
        assert "item(" in body


@EVERY_SCRIPT
def test_every_imported_part_is_used(script: Script) -> None:
    uses = list(script.head.get("Uses", ()))
    for place, part in enumerate(uses):
        users = script.source + "".join(PARTS[later] for later in uses[place + 1 :])
        assert defined(PARTS[part]) & words(users), f"nothing of shared/{part}.lua is used"


@EVERY_SCRIPT
def test_script_gives_exactly_the_answers_of_its_header(script: Script) -> None:
    source = without_comments(script.source)
    said = set(re.findall(r"\{ '([a-z]+)'", source)) | set(re.findall(r"answers\[i\] = .*?'([a-z]+)' or '", source))
    listed = set(script.head["Answers"])
    assert said <= listed, "an answer that the head does not list"
    everything = without_comments(script.text)
    missing = {word for word in listed if f"'{word}'" not in everything}
    assert missing == set(), "a word of the head that is nowhere answered"


def free_names(source: str) -> Iterator[str]:
    """Return the names that are neither locals nor fields nor table keys."""
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


def test_search_for_globals_finds_a_planted_one() -> None:
    assert list(free_names("local a = { key = 1 }\nb = a\nreturn c.d")) == ["b", "c"]


@EVERY_SCRIPT
def test_every_key_and_argument_of_a_script_has_a_name(script: Script) -> None:
    assert not re.search(r"\b(KEYS|ARGV)\b", code(script.source))
    assert not re.search(r"\bTAG\b", script.source), "keys are built by the functions of keys.py"


@EVERY_SCRIPT
def test_only_the_needed_key_functions_are_sent(script: Script) -> None:
    functions = {one.source for one in expressions().values()}
    sent = {name for name in expressions() if f"local function {name}(" in script.text}
    body = "".join(line + "\n" for line in script.text.split("\n") if line not in functions)
    assert sent == {name for name in expressions() if re.search(rf"\b{name}\b", code(body))}


@EVERY_SCRIPT
def test_keys_with_plain_names_are_inlined(script: Script) -> None:
    """The server creates every function again for each call, which takes time."""
    text, functions = code(script.text), {code(one.source) for one in expressions().values()}
    body = "\n".join(line for line in text.split("\n") if line not in functions)
    names = "|".join(name for name in expressions() if f"function {name}(" not in body)
    assert re.findall(rf"\b(?:{names})\([\w., ]*\)", body) == []


@EVERY_SCRIPT
def test_only_the_used_shared_functions_are_sent(script: Script) -> None:
    """The server creates every function again for each call, which takes time."""
    text = code(script.text)
    made = re.findall(r"^local function (\w+)|^local (\w+(?:, \w+)*)", text, re.M)
    names = [name for one, some in made for name in (one or some).split(", ")]
    arguments = {*script.arguments, "items", "item", "TAG"}
    assert [name for name in names if name not in arguments and len(re.findall(rf"\b{name}\b", text)) < 2] == []


def test_first_line_contains_only_flags_that_the_server_knows() -> None:
    for script in SCRIPTS:
        assert re.fullmatch(r"#!lua( flags=(allow-oom|no-writes))?", script.text.split("\n", 1)[0])
        assert script.text_without_shebang == script.text.split("\n", 1)[1]


def test_every_script_uses_the_servers_time() -> None:
    for script in SCRIPTS:
        assert "'TIME'" not in script.source
        assert "os." not in code(script.source)
        assert "math.random" not in script.text
        if "now" in script.arguments:
            assert "server_ms(now)" in script.source, f"{script.name} trusts the caller's time"


def test_call_with_a_wrong_argument_name_is_refused() -> None:
    lock = Script("lock")
    with pytest.raises(BadCall, match="lock takes lock, token, ttl; it was given lock, token"):
        lock.call("{t:0}", lock="l", token="t")
    with pytest.raises(BadCall, match="lock takes no items"):
        lock.call("{t:0}", [("item",)], lock="l", token="t", ttl=1)


def test_call_passes_arguments_by_name() -> None:
    lock = Script("lock")
    assert lock.call("{t:0}", ttl=3, token="t", lock="l").fixed == ("l", "t", 3)


def test_call_knows_which_run_it_concerns() -> None:
    for script in SCRIPTS:
        given: dict[str, Any] = dict.fromkeys(script.arguments, "x")
        assert script.call("{t:0}", **given).run == ("x" if "id" in script.arguments else None)


def test_names_in_shared_parts_do_not_shadow_those_of_a_header() -> None:
    """A part is inserted after the arguments, so a function of the same name would replace an argument."""
    for script in SCRIPTS:
        for part in script.head.get("Uses", ()):
            assert not defined(PARTS[part]) & set(script.arguments), (
                f"shared/{part}.lua hides an argument of {script.name}"
            )


def test_functions_that_only_a_rare_function_uses_are_created_when_it_is_first_called() -> None:
    complete = next(script for script in SCRIPTS if script.name == "complete").text
    start = complete.index("expire_beside = function(")
    outer = set(re.findall(r"^local function (\w+)", complete[:start], re.M))
    created = complete.index("created_expire_beside = function(")
    assert start < complete.index("if not created_expire_beside then") < created
    assert start < complete.index("local function report_ending(") < created
    assert not outer & {"report_ending", "record_result", "drop_step", "read_join", "notify"}
