"""`coordinator check` and the first call of a client name the real cause where a server can't be used."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from coordinator import Client
from coordinator.errors import CoordinatorError, NotConfigured
from coordinator.store.rights import ROLES, acl
from tests.conftest import StartServer
from tests.servers import Server


def check(url: str, namespace: str) -> tuple[int, dict[str, object]]:
    environment = os.environ | {"RUNS_URL": url, "RUNS_NAMESPACE": namespace}
    command = [sys.executable, "-m", "coordinator.cli", "check", "--json"]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=60, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else {"error": done.stderr}


def make_user(server: Server, *rules: str) -> str:
    """Make a user with some rights, and return the URL with its name."""
    server.admin.execute_command("ACL", "SETUSER", "someone", "reset", "on", ">secret", "~*", "&*", "+@all", *rules)
    return server.url.replace("redis://", "redis://someone:secret@")


def test_check_runs_one_script_of_each_role_and_changes_nothing(start_server: StartServer, namespace: str) -> None:
    server = start_server(settings={"appendonly": "yes", "maxmemory-policy": "noeviction"})
    code, answer = check(server.url, namespace)
    assert (code, answer["findings"], answer["roles"]) == (0, [], [*ROLES])
    assert server.admin.dbsize() == 0


@pytest.mark.parametrize("command", ["eval", "evalsha", "time"])
def test_check_finds_a_forbidden_command_that_every_call_needs(
    valkey_server: Server, namespace: str, command: str
) -> None:
    valkey_server.admin.script_flush()
    code, answer = check(make_user(valkey_server, f"-{command}"), namespace)
    assert code == 1
    findings = answer["findings"]
    assert isinstance(findings, list)
    assert any(finding["refused"] and "lacks rights" in finding["sentence"] for finding in findings)


@pytest.mark.parametrize("role", ROLES)
def test_check_names_the_roles_of_a_user_that_has_only_some(valkey_server: Server, namespace: str, role: str) -> None:
    user, *rules = acl(role, namespace)
    valkey_server.admin.execute_command("ACL", "SETUSER", user, *(">secret" if r == ">PASSWORD" else r for r in rules))
    code, answer = check(valkey_server.url.replace("redis://", f"redis://{user}:secret@"), namespace)
    assert (code, answer["findings"]) == (0, [])
    roles = answer["roles"]
    assert isinstance(roles, list)
    assert role in roles


def test_check_refuses_a_namespace_of_another_format(valkey_server: Server, namespace: str) -> None:
    with Client(valkey_server.url, namespace) as client:
        client.enqueue("greet")
    valkey_server.admin.hset(f"{{{namespace}:0}}:namespace", "format", "2")
    code, answer = check(valkey_server.url, namespace)
    assert code == 3
    assert "has format 2, but this version reads format 1: start this process with the version" in str(answer["error"])


def first_call(url: str, namespace: str) -> CoordinatorError:
    """Return the error of a client's first call."""
    with Client(url, namespace, timeout=2) as client, pytest.raises(CoordinatorError) as caught:
        client.enqueue("greet")
    return caught.value


def test_a_renamed_command_is_named_as_the_cause(start_server: StartServer, namespace: str) -> None:
    server = start_server("redis", {"rename-command": "EVALSHA hidden"})
    code, answer = check(server.url, namespace)
    assert (code, "does not know the command EVALSHA" in json.dumps(answer["findings"])) == (1, True)
    assert "rename-command" in json.dumps(answer["findings"])
    assert "rename-command" in str(first_call(server.url, namespace))


def test_a_server_without_a_free_connection_says_maxclients(start_server: StartServer, namespace: str) -> None:
    server = start_server("valkey", {})
    server.admin.config_set("maxclients", 1)
    assert "raise its maxclients" in str(first_call(server.url, namespace))


@pytest.fixture
def web_server() -> Iterator[int]:
    class Quiet(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_port_of_a_web_server_is_called_that(web_server: int, namespace: str) -> None:
    error = first_call(f"redis://127.0.0.1:{web_server}/0", namespace)
    assert isinstance(error, NotConfigured)
    assert "is not a Redis or Valkey server" in str(error)
