"""Hosts on this machine: network namespaces that meet in a router, which drops what goes between any two of them in silence.

A packet that is dropped there is answered by nobody: no refusal, no reset, no word that there is no way. Whoever breaks the way
between hosts still reaches each of them, aside: by a second address that no fault is for.

What is made is called after the process that made it, so that several can be there at once; what one that was killed left behind is
removed by the next.
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
ADDRESSES = ipaddress.IPv4Network("198.18.0.0/15")  # set apart for trials of networks: nobody lives there (RFC 2544)
BLOCK = 27  # bits of the network of one lab: up to four lines of four addresses, and one more for each host, aside
LINE = 4
MOST = 3
Way = Literal["both", "in", "out"]
_numbers = count()


class NoNamespaces(Exception):
    """Network namespaces can't be made here."""


class Hosts:
    """Some hosts, each with a line to a router; the outside, where we are, has one, too."""

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
        """From now on nothing comes through between a host and others, or the outside: in both directions, or in one alone, as
        seen from the host. All at once."""
        ends = [*(other.address for other in others if other is not host), *([self._outside] if outside else [])]
        out = {(host.address, end) for end in ends} if way != "in" else set()
        into = {(end, host.address) for end in ends} if way != "out" else set()
        self._drop(out | into)

    def heal(self) -> None:
        """All reach all."""
        lines = [f"rule del blackhole from {start} to {end}" for start, end in sorted(self._dropped)]
        self._dropped.clear()
        _ip(lines, namespace=self._router)

    def _drop(self, pairs: set[tuple[str, str]]) -> None:
        new = pairs - self._dropped
        self._dropped |= new
        # a router that throws away by rule says nothing; a host that has no way would tell its own programs at once
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
        """Removes all of it, whatever of it there is."""
        _remove(self._name, self._made)
        self._claim.close()


def hindrance() -> str | None:
    """Why there can't be hosts on this machine, as a sentence; None where there can."""
    try:
        Hosts(1).close()
    except NoNamespaces as error:
        return str(error)
    return None


def _claimed() -> tuple[socket.socket, ipaddress.IPv4Network]:
    """Addresses that no other lab has: each holds a name that the kernel gives to one process, until it ends."""
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
    """What a process has left behind that was killed."""
    with contextlib.suppress(OSError):
        left = [path.name for path in Path("/run/netns").glob(f"{NAME}*-*-*")]
        for lab in {"-".join(name.split("-")[:2]) for name in left}:
            if not Path(f"/proc/{lab.removeprefix(NAME).partition('-')[0]}").exists():
                _remove(lab, [name for name in left if name.startswith(f"{lab}-")])


def _remove(lab: str, namespaces: Iterable[str]) -> None:
    for words in (["link", "del", lab], *(["netns", "del", name] for name in namespaces)):
        subprocess.run(["ip", *words], capture_output=True, start_new_session=True)  # a Ctrl-C is not for it


def _ip(lines: Sequence[str], namespace: str | None = None) -> None:
    """Some lines of ip's own language, in one process."""
    _run(["ip", *(["-n", namespace] if namespace else []), "-batch", "-"], "\n".join(lines) + "\n")


def _run(words: Sequence[str], text: str = "") -> None:
    done = subprocess.run(words, input=text, capture_output=True, text=True, start_new_session=True)
    if done.returncode:
        why = " ".join(done.stderr.split()) or f"{words[0]} ended with {done.returncode}"
        raise NoNamespaces(f"network namespaces can't be made here ({why}): it takes root and a kernel that allows it")
