from __future__ import annotations

import base64
import hashlib
import hmac
from pathlib import Path

import pytest

from coordinator import BadOption
from coordinator.web.auth import Caller, Role, TokenFile

ALICE, BOB = "alice-token-0123456789", "bob-token-0123456789"


def token_file(tmp_path: Path, text: str) -> TokenFile:
    path = tmp_path / "tokens"
    path.write_text(text)
    return TokenFile(path)


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def test_token_names_its_caller_and_role(tmp_path: Path) -> None:
    tokens = token_file(tmp_path, f"# callers\n\nalice all {ALICE}\nbob read {BOB}\n")
    assert tokens.find_caller(f"Bearer {ALICE}") == Caller("alice", Role.ALL)
    assert tokens.find_caller(f"bearer {BOB}") == Caller("bob", Role.READ)
    assert tokens.find_caller(basic("alice", ALICE)) == Caller("alice", Role.ALL)


def test_file_may_have_digests_instead_of_tokens(tmp_path: Path) -> None:
    tokens = token_file(tmp_path, f"alice all sha256:{hashlib.sha256(ALICE.encode()).hexdigest()}")
    assert tokens.find_caller(f"Bearer {ALICE}") == Caller("alice", Role.ALL)


@pytest.mark.parametrize(
    "header",
    [
        None, "", "Bearer", "Bearer ", "Bearer wrong", f"Digest {ALICE}", f"Bearer {ALICE.upper()}",
        "Basic", "Basic !!!", basic("bob", ALICE), basic("alice", ""), basic("", ALICE), "Bearer \xff",
        "Basic " + base64.b64encode(ALICE.encode()).decode(),
    ],
)  # fmt: skip
def test_header_without_a_valid_token_names_no_caller(tmp_path: Path, header: str | None) -> None:
    assert token_file(tmp_path, f"alice all {ALICE}\nbob read {BOB}").find_caller(header) is None


@pytest.mark.parametrize("token", [ALICE, BOB, "wrong"])
def test_token_is_compared_with_every_token_in_constant_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    tokens, compare = token_file(tmp_path, f"alice all {ALICE}\nbob read {BOB}"), hmac.compare_digest
    compared: list[bytes] = []

    def record(known: bytes, given: bytes) -> bool:
        compared.append(known)
        return compare(known, given)

    monkeypatch.setattr(hmac, "compare_digest", record)
    tokens.find_caller(f"Bearer {token}")
    assert compared == [hashlib.sha256(known.encode()).digest() for known in (ALICE, BOB)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no caller"),
        ("# only a comment", "has no caller"),
        (f"alice {ALICE}", "line 1"),
        (f"alice all {ALICE}\nbob none {BOB}", "line 2"),
        ("alice all short", "too short"),
        ("alice all sha256:abc", "digest"),
    ],
)
def test_file_that_is_not_valid_is_refused_without_quoting_a_token(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadOption, match=said) as refused:
        token_file(tmp_path, text)
    assert ALICE not in str(refused.value)
    assert BOB not in str(refused.value)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="No such file"):
        TokenFile(tmp_path / "nothing")
