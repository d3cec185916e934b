"""Passwords are never shown, in any kind of URL: not for a wrong URL, an unreachable server, or a server that refuses
the password.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator import AsyncClient, Client
from coordinator.config import Settings
from coordinator.errors import BadOption, CoordinatorError
from tests.certificates import Certificates
from tests.clusters import Cluster, Group
from tests.conftest import StartServer
from tests.servers import Kind, free_port

SECRET = "s3cr3t-pa55w0rd"
OTHER = "an0th3r-w0rd"

WRONG = [
    f"http://:{SECRET}@host",
    f"redis://user:{SECRET}@host:99999/0",
    f"redis://user:{SECRET}@host/abc",
    f"redis://user:{SECRET}@a,b/0",
    f"redis://user:1/{SECRET}@host:6379/0",  # This slash is not written as %2F.
    f"redis+sentinel://user:1/{SECRET}@host/main/0",
    f"redis+sentinel://:{SECRET}@host",
    f"redis+sentinel://host/main/0?sentinel_password={SECRET}&unknown=1",
    f"redis+sentinel://host/main/abc?sentinel_password={SECRET}",
    f"redis+cluster://:{SECRET}@host/3",
    f"rediss://:{SECRET}@host?ssl_ca_certs=/nowhere&ssl_password={OTHER}",
    f"rediss+cluster://:{SECRET}@host?ssl_cert_reqs=maybe",
    f"unix:///run/x.sock?password={SECRET}&unknown=1",
    f"unix://?password={SECRET}",
]


@pytest.mark.parametrize("url", WRONG)
def test_wrong_url_is_reported_without_its_password(url: str) -> None:
    with pytest.raises(BadOption) as caught:
        Settings(url)
    _clean(str(caught.value), repr(caught.value))


def _clean(*texts: str) -> None:
    for text in texts:
        assert SECRET not in text, text
        assert OTHER not in text, text


def urls(certificates: Certificates, directory: Path) -> dict[str, str]:
    """Return URLs of every kind, for a server that does not exist."""
    port = free_port()
    return {
        "redis": f"redis://user:{SECRET}@127.0.0.1:{port}/0",
        "rediss": f"rediss://user:{SECRET}@127.0.0.1:{port}/0?{certificates.options()}&ssl_password={OTHER}",
        "unix": f"unix://{directory / 'nobody.sock'}?username=user&password={SECRET}",
        "sentinel": f"redis+sentinel://user:{SECRET}@127.0.0.1:{port}/main/0?sentinel_password={OTHER}",
        "cluster": f"redis+cluster://user:{SECRET}@127.0.0.1:{port},127.0.0.1:{port + 1}",
    }


@pytest.mark.matrix("more cases with real processes")
@pytest.mark.parametrize("scheme", ["redis", "rediss", "unix", "sentinel", "cluster"])
async def test_unreachable_server_is_reported_without_the_password(
    scheme: str, tmp_path: Path, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = urls(Certificates(tmp_path / "certificates"), tmp_path)[scheme]
    _clean(repr(Settings(url)), str(Settings(url).address), repr(Settings(url).address))
    with Client(url, namespace, timeout=0.2) as client:
        _clean(*_trouble(lambda: client.enqueue("k", {})), repr(client))
    async with AsyncClient(url, namespace, timeout=0.2) as asynchronous:
        with pytest.raises(CoordinatorError) as caught:
            await asynchronous.enqueue("k", {})
        _clean(str(caught.value), repr(caught.value), repr(asynchronous))
    for words in (["status"], ["check"], ["status", "--json"], ["check", "--json"]):
        _clean(*output_and_arguments(url, namespace, "coordinator", *words, timeout=0.5))
    _clean(caplog.text)


def _trouble(call: Callable[[], Any]) -> list[str]:
    with pytest.raises(CoordinatorError) as caught:
        call()
    chain: list[BaseException] = [caught.value]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(before)  # A traceback would show this.
    return [text for error in chain for text in (str(error), repr(error))]


def output_and_arguments(url: str, namespace: str, program: str, *words: str, timeout: float = 30) -> list[str]:
    """Return the output of a command, and its arguments as every user of the machine sees them."""
    environment = os.environ | {"RUNS_URL": url, "RUNS_NAMESPACE": namespace, "RUNS_TIMEOUT": str(timeout)}
    command = [sys.executable, "-m", f"{program}.cli", *words]
    process = subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    arguments = Path(f"/proc/{process.pid}/cmdline").read_text()
    out, err = process.communicate(timeout=60)
    return [out, err, arguments]


@pytest.mark.matrix("more cases with real processes")
@pytest.mark.parametrize("kind", ["one", "cluster", "sentinel"])
def test_refused_password_is_not_shown(
    kind: str,
    start_server: StartServer,
    shared_topologies: Callable[[str, Kind], Cluster | Group],
    namespace: str,
) -> None:
    made = start_server() if kind == "one" else shared_topologies(kind, "valkey")
    url = made.url.replace("://", f"://user:{SECRET}@", 1)
    for words in (["status", "--json"], ["check", "--json"], ["init"]):
        texts = output_and_arguments(url, namespace, "coordinator", *words)
        assert "refused the user or password" in texts[1]
        _clean(*texts)
    with Client(url, namespace) as client:
        _clean(*_trouble(lambda: client.enqueue("k", {})))
