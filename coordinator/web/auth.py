"""Identify the caller of a request by its token, and find the role that says what the caller may do."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from starlette.requests import Request

from coordinator.errors import BadOption
from coordinator.model.names import name as check_name

SHORTEST_TOKEN = 16
_DIGEST = "sha256:"


class Role(StrEnum):
    """The role of a caller: what it may do.

    Attributes:
        ALL: Read and change runs.
        READ: Read runs.
        NONE: Nothing.
    """

    ALL = "all"
    READ = "read"
    NONE = "none"


# A function of the host application that returns the role of the caller of a request. It may be a coroutine function.
Access = Callable[[Request], Role | str | Awaitable[Role | str]]


async def find_role(access: Access | None, request: Request) -> Role:
    """Return the role that the `access` function gives to the caller of a request; ALL if there is no such function."""
    if access is None:
        return Role.ALL
    found = access(request)
    return Role(await found if inspect.isawaitable(found) else found)


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request: its name and its role. Without a token file, every caller has the name "local"."""

    name: str
    role: Role


class TokenFile:
    """The callers of a token file.

    Each line has a name, a role (`all` or `read`) and a token of at least 16 characters, separated by spaces. Instead of the
    token, the line may have `sha256:` and the SHA-256 digest of the token in hexadecimal. Empty lines and lines that begin with
    `#` are ignored.
    """

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            BadOption: The file can't be read, has no caller, or has a line that is not valid.
        """
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise BadOption(f"can't read the token file {path}: {reason}") from None
        found = [
            _parse_line(f"line {number} of {path}", line)
            for number, line in enumerate(lines, 1)
            if line.strip() and not line.lstrip().startswith("#")
        ]
        if not found:
            raise BadOption(f"the token file {path} has no caller: write lines such as 'alice read TOKEN'")
        self._callers: list[tuple[bytes, Caller]] = found

    def find_caller(self, authorization: str | None) -> Caller | None:
        """Return the caller that an `Authorization` header identifies; None if no caller has the token in the header.

        The header is `Bearer TOKEN`, or `Basic` with the caller's name and the token as its password, as a browser sends it. The
        token is compared with every token of the file, and each comparison takes the same time.
        """
        found = _read_authorization(authorization or "")
        if found is None:
            return None
        name, token = found
        digest = hashlib.sha256(token).digest()
        match: Caller | None = None
        for known, caller in self._callers:
            if hmac.compare_digest(known, digest) and name in (None, caller.name):
                match = caller
        return match


def _parse_line(where: str, line: str) -> tuple[bytes, Caller]:
    words = line.split()
    if len(words) != 3:  # the message must not quote the line, which may have a token
        raise BadOption(f"{where} is not valid: write a name, a role and a token, separated by spaces")
    name, role, token = words
    check_name(name, "caller")
    if role not in (Role.ALL, Role.READ):
        raise BadOption(f"{where} has a role that is not known: use all or read")
    if token.startswith(_DIGEST):
        try:
            digest = bytes.fromhex(token.removeprefix(_DIGEST))
        except ValueError:
            digest = b""
        if len(digest) != hashlib.sha256().digest_size:
            raise BadOption(f"{where} has a digest that is not valid: write sha256: and 64 hexadecimal digits")
        return digest, Caller(name, Role(role))
    if len(token) < SHORTEST_TOKEN:
        raise BadOption(f"{where} has a token that is too short: use at least {SHORTEST_TOKEN} random characters")
    return hashlib.sha256(token.encode()).digest(), Caller(name, Role(role))


def _read_authorization(header: str) -> tuple[str | None, bytes] | None:
    """Return the name (None for a bearer token) and the token of an `Authorization` header; None if it has none."""
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return None, value.strip().encode("latin-1", "replace")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, token = base64.b64decode(value.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return (name.decode(errors="replace"), token) if colon else None
