"""Hosts on this machine: network namespaces that are joined by a router, which silently drops packets between any two of them.

A dropped packet gets no answer at all: no refusal, no reset, no "unreachable". The test itself still reaches every
host, by a second address (`aside`) that no fault affects.

All names contain the id of the process that made them, so that several processes can have hosts at the same time. The
next process removes the hosts of a killed process.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import shutil
import socket
import subprocess
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Literal

from tests.servers import Host

NAME = "lab"
ADDRESSES = ipaddress.IPv4Network("198.18.0.0/15")  # reserved for network tests (RFC 2544)
BLOCK = (
    27  # prefix length of one lab's network: up to four links of four addresses, and one `aside` address for each host
)
LINE = 4
MOST = 3
Way = Literal["both", "in", "out"]
_numbers = count()


class NoNamespaces(Exception):
    """Network namespaces cannot be created here."""


class Hosts:
    """Some hosts, each connected to a router. The outside, where the test runs, is connected to it too."""

    def __init__(self, number: int) -> None:
        assert number <= MOST
        if shutil.which("ip") is None:
            raise NoNamespaces("network namespaces need the command ip (Debian: apt-get install iproute2)")
        _sweep()
        self._name = f"{NAME}{os.getpid()}-{next(_numbers)}"
        self._claim, network = _claimed()
        self._outside = str(network[LINE * MOST + 2])
        self._made: list[str] = []
        self._dropped: set[tuple[str, str]] = set()
        self.all: list[Host] = []
        try:
            self._join(network, number)
        except BaseException:
            self.close()
            raise

    # -- faults

    def cut(self, host: Host, *others: Host, outside: bool = False, way: Way = "both") -> None:
        """Drop all packets between a host and other hosts or the outside, in both directions or in one direction.

        The direction is as seen from the host. All cuts start at the same moment.
        """
        ends = [*(other.address for other in others if other is not host), *([self._outside] if outside else [])]
        out = {(host.address, end) for end in ends} if way != "in" else set()
        into = {(end, host.address) for end in ends} if way != "out" else set()
        self._drop(out | into)

    def heal(self) -> None:
        """Let all packets through again."""
        lines = [f"rule del blackhole from {start} to {end}" for start, end in sorted(self._dropped)]
        self._dropped.clear()
        _ip(lines, namespace=self._router)

    def _drop(self, pairs: set[tuple[str, str]]) -> None:
        new = pairs - self._dropped
        self._dropped |= new
        # A router that drops packets by rule says nothing. A host without a route would tell its own programs immediately.
        _ip([f"rule add blackhole from {start} to {end}" for start, end in sorted(new)], namespace=self._router)

    # -- what they are made of

    def _join(self, network: ipaddress.IPv4Network, number: int) -> None:
        self._router = self._namespace("router")
        _ip([f"link add {self._name} type veth peer name outside netns {self._router}"])
        _ip([f"addr add {self._outside}/30 dev {self._name}", f"link set {self._name} up"])
        _ip([f"addr add {network[LINE * MOST + 1]}/30 dev outside", "link set outside up"], namespace=self._router)
        _ip([f"route add {network} via {network[LINE * MOST + 1]}"])
        for n in range(number):
            self.all.append(self._host(network, n))
        forward = ["ip", "netns", "exec", self._router, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]
        _run(forward)

    def _host(self, network: ipaddress.IPv4Network, n: int) -> Host:
        name = self._namespace(f"host-{n}")
        gate, address, aside = network[LINE * n + 1], network[LINE * n + 2], network[LINE * (MOST + 1) + n]
        _ip([f"link add line netns {name} type veth peer name host-{n} netns {self._router}"])
        lines = ["link set lo up", f"addr add {aside}/32 dev lo", f"addr add {address}/30 dev line", "link set line up"]
        _ip([*lines, f"route add default via {gate}"], namespace=name)
        lines = [f"addr add {gate}/30 dev host-{n}", f"link set host-{n} up", f"route add {aside} via {address}"]
        _ip(lines, namespace=self._router)
        return Host(str(address), str(aside), ("ip", "netns", "exec", name))

    def _namespace(self, what: str) -> str:
        name = f"{self._name}-{what}"
        self._made.append(name)
        _run(["ip", "netns", "add", name])
        return name

    def close(self) -> None:
        """Remove whatever exists of the hosts."""
        _remove(self._name, self._made)
        self._claim.close()


def missing_requirement() -> str | None:
    """Return a sentence that says why this machine cannot have hosts, or None if it can."""
    try:
        Hosts(1).close()
    except NoNamespaces as error:
        return str(error)
    return None


def _claimed() -> tuple[socket.socket, ipaddress.IPv4Network]:
    """Return addresses that no other lab uses. A socket name that the kernel gives to one process only reserves them."""
    blocks = list(ADDRESSES.subnets(new_prefix=BLOCK))
    first = os.getpid() % len(blocks)
    for block in blocks[first:] + blocks[:first]:
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0addresses of a lab from {block}")
        except OSError:
            claim.close()
            continue
        return claim, block
    raise AssertionError("all addresses are taken")


def _sweep() -> None:
    """Remove the hosts of killed processes."""
    with contextlib.suppress(OSError):
        left = [path.name for path in Path("/run/netns").glob(f"{NAME}*-*-*")]
        for lab in {"-".join(name.split("-")[:2]) for name in left}:
            if not Path(f"/proc/{lab.removeprefix(NAME).partition('-')[0]}").exists():
                _remove(lab, [name for name in left if name.startswith(f"{lab}-")])


def _remove(lab: str, namespaces: Iterable[str]) -> None:
    for words in (["link", "del", lab], *(["netns", "del", name] for name in namespaces)):
        subprocess.run(
            ["ip", *words], capture_output=True, start_new_session=True
        )  # Ctrl-C must not interrupt the removal.


def _ip(lines: Sequence[str], namespace: str | None = None) -> None:
    """Run some commands of `ip` in one process."""
    _run(["ip", *(["-n", namespace] if namespace else []), "-batch", "-"], "\n".join(lines) + "\n")


def _run(words: Sequence[str], text: str = "") -> None:
    done = subprocess.run(words, input=text, capture_output=True, text=True, start_new_session=True)
    if done.returncode:
        why = " ".join(done.stderr.split()) or f"{words[0]} ended with {done.returncode}"
        raise NoNamespaces(f"network namespaces can't be made here ({why}): it takes root and a kernel that allows it")
