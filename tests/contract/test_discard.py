"""Discarding ended runs with a client."""

from __future__ import annotations

import pytest

from coordinator import Changed, Client, NotFound, Status


def test_ended_run_is_removed_and_no_longer_listed(store_url: str, namespace: str) -> None:
    with Client(store_url, namespace) as client:
        handle, other = client.enqueue("k"), client.enqueue("k")
        with pytest.raises(Changed, match="has not ended \\(it is queued\\)"):
            handle.discard()
        handle.cancel()
        other.cancel()
        assert handle.discard() is Status.CANCELLED
        assert [view.id for view in client.list(status="cancelled")] == [other.id]
        with pytest.raises(NotFound):
            client.handle("00000000000000000001-00").discard()
