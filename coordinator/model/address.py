"""The address of a server: its URL, parsed and checked. The text of an address never contains the password.

A URL names one server, some sentinels that know the master, or some nodes of a Cluster:
    redis://user:password@host:6379/0       rediss:// with TLS, unix:///path, memory://name, embedded://./dir
    redis+sentinel://host,host/service/0    rediss+sentinel:// with TLS
    redis+cluster://host,host               rediss+cluster:// with TLS
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from coordinator.errors import BadOption

_PORTS = {
    "redis": 6379, "rediss": 6379, "redis+sentinel": 26379, "rediss+sentinel": 26379, "redis+cluster": 6379,
    "rediss+cluster": 6379,
}  # fmt: skip
_SCHEMES = (*_PORTS, "unix", "memory", "embedded")
_TLS_OPTIONS = {
    "ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_password", "ssl_cert_reqs", "ssl_check_hostname",
    "ssl_ciphers",
}  # fmt: skip
_SENTINEL_OPTIONS = {"sentinel_username", "sentinel_password"}
_UNIX_OPTIONS = {"db", "username", "password"}


class Node(NamedTuple):
    """The host and port of one server process. The host is empty if the address names only one server."""

    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


HERE = Node()


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server.

    Attributes:
        scheme: The scheme of the URL.
        name: The URL without scheme, credentials and options, which may be printed.
        nodes: The nodes that the URL names: the server, some sentinels, or some nodes of a Cluster.
        service: The name under which the sentinels know the master.
        database: The number of the database.
    """

    scheme: str
    name: str
    _url: str = field(repr=False)
    nodes: tuple[Node, ...] = ()
    service: str = ""
    database: int = 0

    def url(self) -> str:
        """Return the URL with the password."""
        return self._url

    @property
    def kind(self) -> str:
        """The kind of installation: "sentinel", "cluster", or "one" for a single server."""
        return self.scheme.partition("+")[2] or "one"

    @property
    def tls(self) -> bool:
        """Return True if connections use TLS."""
        return self.scheme.startswith("rediss")

    def url_of(self, node: Node, *, sentinel: bool = False) -> str:
        """Return the URL of one node, with the password.

        Args:
            node: The node.
            sentinel: True if the node is a sentinel. The URL then has the credentials for sentinels.
        """
        parts = _split(self._url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        user, password = options.pop("sentinel_username", ""), options.pop("sentinel_password", "")
        login = parts.netloc.rpartition("@")[0]
        if sentinel:
            login = f"{quote(user, safe='')}:{quote(password, safe='')}" if password else ""
        scheme = "rediss" if self.tls else "redis"
        database = 0 if sentinel else self.database
        return f"{scheme}://{login}{'@' if login else ''}{node}/{database}?{urlencode(options)}".rstrip("?")

    def __str__(self) -> str:
        return f"{self.scheme}://{self.name}"


def address(url: str) -> Address:
    """Parse and check the URL of a server, and return it as an address.

    Raises:
        BadOption: The text is not the URL of a server.
    """
    found = re.match(r"([a-z+]+)://", url)
    if found is None or found[1] not in _SCHEMES:
        shown = re.sub(r"^([a-z+]*:?/*).*@", r"\1…@", url)
        raise BadOption(
            f"{shown!r} is not the URL of a server: use redis://host:port/0, rediss://, redis+sentinel://host,host/service/0, "
            "redis+cluster://host,host, unix:///path, memory://name or embedded://./dir"
        )
    scheme = found[1]
    if scheme == "memory":
        return Address(scheme, url[len("memory://") :] or "default", url)
    if scheme == "embedded":
        return _embedded(url)
    parts = _split(url)
    _check_options(scheme, dict(parse_qsl(parts.query, keep_blank_values=True)))
    if scheme == "unix":
        if not parts.path:
            raise BadOption("unix:// needs the path of a socket: unix:///run/redis.sock")
        return Address(scheme, parts.path, url)
    nodes = tuple(_nodes(parts.netloc.rpartition("@")[2], _PORTS[scheme]))
    names = ",".join(map(str, nodes))
    if scheme.endswith("+sentinel"):
        return _sentinel(url, scheme, nodes, names, parts.path)
    if scheme.endswith("+cluster"):
        if parts.path.strip("/") not in ("", "0"):
            raise BadOption("a Cluster has one database: omit the number, as in redis+cluster://host:port")
        return Address(scheme, names, url, nodes)
    if len(nodes) > 1:
        raise BadOption(
            "redis:// names one server: use redis+sentinel://host,host/service/0 or redis+cluster://host,host for more"
        )
    database = _database(parts.path.strip("/"))
    return Address(scheme, f"{names}/{database}", url, nodes, database=database)


def _split(url: str) -> SplitResult:
    """Split a URL into its parts.

    `urlsplit` alone refuses a list of hosts with an IPv6 address, from Python 3.14 on.

    Raises:
        BadOption: A bracket in the list of hosts is not closed.
    """
    scheme, _, rest = re.sub(r"[\t\r\n]", "", url).partition("://")  # `urlsplit` removes these characters, too
    end = re.search(r"[/?#]|$", rest)
    assert end is not None
    netloc = rest[: end.start()]
    hosts = netloc.rpartition("@")[2]
    if hosts.count("[") != hosts.count("]"):
        raise BadOption("a host in the server's URL is not valid: write an IPv6 address in [brackets]")
    return urlsplit(f"{scheme}://{rest[end.start() :]}")._replace(netloc=netloc)


def _embedded(url: str) -> Address:
    directory = url[len("embedded://") :]
    if not directory:
        raise BadOption("embedded:// needs a directory: embedded://./.runs")
    return Address("embedded", str(Path(directory).resolve()), url)


def _sentinel(url: str, scheme: str, nodes: tuple[Node, ...], names: str, path: str) -> Address:
    service, _, database = path.strip("/").partition("/")
    _no_login(path)
    if not service:
        raise BadOption(
            f"{scheme}:// needs the name under which sentinels know the master: {scheme}://host,host/mymaster/0"
        )
    number = _database(database)
    return Address(scheme, f"{names}/{service}/{number}", url, nodes, unquote(service), number)


def _nodes(hosts: str, port: int) -> Iterable[Node]:
    for text in hosts.split(","):
        found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^:\[\]]+))(?::(\d+))?", text)
        if found is None and text and ":" not in text.rpartition("]")[2]:
            raise BadOption(f"{text!r} in the server's URL is not a host")
        if found is None and not text.rpartition(":")[0]:
            raise BadOption("the server's URL names no host: use redis://host:port/0")
        if found is None or not 0 < int(found[3] or port) < 65536:
            raise BadOption("the port in the server's URL is not a number from 1 to 65535")
        yield Node((found[1] or found[2]).lower(), int(found[3] or port))


def _no_login(text: str) -> None:
    """Check that a part of the URL after the host contains no @.

    An unquoted slash in a password ends the host too early. The rest of the password, up to the @, must not be shown as a name.

    Raises:
        BadOption: If the text contains an @.
    """
    if "@" in text:
        raise BadOption(
            "there is an @ after the host in the server's URL: in a password, / is written %2F and @ is written %40"
        )


def _database(text: str) -> int:
    _no_login(text)
    if text and not text.isdigit():
        raise BadOption(f"{text!r} in the server's URL is not a database: use a number, as in redis://host:port/0")
    return int(text or 0)


def _check_options(scheme: str, options: Mapping[str, str]) -> None:
    """Check the options after the question mark of a URL.

    Options of redis-py that are not listed here, for example its timeouts, are refused, because the transport sets them itself.

    Raises:
        BadOption: An option is unknown, or its value is not valid.
    """
    known = _UNIX_OPTIONS if scheme == "unix" else _TLS_OPTIONS if scheme.startswith("rediss") else set[str]()
    if scheme.endswith("+sentinel"):
        known = known | _SENTINEL_OPTIONS
    for option, value in options.items():
        if option in _TLS_OPTIONS and option not in known:
            raise BadOption(f"{option} in the server's URL is for TLS: use {_with_tls(scheme)}://")
        if option not in known:
            allowed = ", ".join(sorted(known)) or "none"
            raise BadOption(f"unknown option {option} in the server's URL; the options are: {allowed}")
        if option == "ssl_cert_reqs" and value not in ("none", "optional", "required"):
            raise BadOption(f"ssl_cert_reqs={value} in the server's URL is not valid: use none, optional or required")
        if option in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile") and not Path(value).is_file():
            raise BadOption(f"{option} in the server's URL names {value}, which does not exist")


def _with_tls(scheme: str) -> str:
    return scheme.replace("redis", "rediss", 1) if scheme.startswith("redis") else "rediss"
