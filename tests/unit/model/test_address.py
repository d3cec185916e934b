"""URLs: what they mean, which ones are refused with an explanation, and that a password is never shown."""

from __future__ import annotations

import pytest

from coordinator.errors import BadOption
from coordinator.model.address import Node, address

SECRET = "s3cr3t"


def test_a_single_server():
    found = address(f"redis://user:{SECRET}@Host:7000/3")
    assert (found.kind, found.nodes, found.database, str(found)) == (
        "one",
        (Node("host", 7000),),
        3,
        "redis://host:7000/3",
    )


@pytest.mark.parametrize("host", ["[::1", "::1]", "a,[::1"])
def test_bracket_that_is_not_closed_is_refused(host):
    with pytest.raises(BadOption, match="IPv6 address in \\[brackets\\]"):
        address(f"redis+cluster://{host}")


def test_line_end_after_a_url_is_ignored():
    assert str(address("redis+cluster://a,[::1]:7000\n")) == "redis+cluster://a:6379,[::1]:7000"


def test_sentinels_and_their_service():
    found = address(f"redis+sentinel://user:{SECRET}@a,b:27000,[::1]:1/main/2?sentinel_password=other")
    assert found.kind == "sentinel"
    assert found.nodes == (Node("a", 26379), Node("b", 27000), Node("::1", 1))
    assert (found.service, found.database) == ("main", 2)
    assert found.url_of(Node("m", 6379)) == f"redis://user:{SECRET}@m:6379/2"
    assert found.url_of(Node("::1", 1), sentinel=True) == "redis://:other@[::1]:1/0"
    assert str(found) == "redis+sentinel://a:26379,b:27000,[::1]:1/main/2"


def test_a_cluster_with_tls(tmp_path):
    authority = tmp_path / "ca.pem"
    authority.touch()
    found = address(f"rediss+cluster://:{SECRET}@a,b?ssl_ca_certs={authority}")
    assert (found.kind, found.tls, found.nodes) == ("cluster", True, (Node("a", 6379), Node("b", 6379)))
    assert found.url_of(Node("c", 7)).startswith(f"rediss://:{SECRET}@c:7/0?ssl_ca_certs=")


@pytest.mark.parametrize("scheme", ["redis", "rediss+cluster", "redis+sentinel"])
def test_printed_address_hides_the_password(scheme):
    found = address(f"{scheme}://user:{SECRET}@host/{'m' if 'sentinel' in scheme else ''}")
    assert SECRET not in str(found) + repr(found)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://host", "is not the URL of a server"),
        ("redis://", "names no host"),
        ("redis://host:x", "port"),
        ("redis://host:0", "port"),
        ("redis://host:70000", "port"),
        ("redis://a,b", r"redis\+cluster"),
        ("redis://host/x", "not a database"),
        ("redis+sentinel://a,b", "mymaster"),
        ("redis+cluster://a/1", "one database"),
        ("redis://host?socket_timeout=1", "socket_timeout"),
        ("redis://host?ssl_ca_certs=x", "rediss://"),
        ("rediss://host?ssl_ca_certs=/no/such", "which does not exist"),
        ("rediss://host?ssl_cert_reqs=maybe", "use none, optional or required"),
        ("unix://", "path of a socket"),
        ("embedded://", "directory"),
    ],
)
def test_wrong_url_is_explained(url, said):
    with pytest.raises(BadOption, match=said):
        address(url)


def test_error_for_a_wrong_url_hides_the_password():
    with pytest.raises(BadOption) as caught:
        address(f"http://user:{SECRET}@host")
    assert SECRET not in str(caught.value)
