"""Run the search of a topology: send its questions to the nodes, and pass their answers to the topology."""

from __future__ import annotations

import asyncio
from typing import Any

from coordinator.model.address import Address
from coordinator.store.transport.connections.async_pool import make_async_pool
from coordinator.store.transport.connections.exchange import exchange, exchange_async
from coordinator.store.transport.connections.sync_pool import make_pool
from coordinator.store.transport.error_mapping import map_error
from coordinator.store.transport.topology import Topology
from coordinator.store.transport.topology.question import Question

QUESTION_SECONDS = 1.0  # seconds after which the search does not wait for the answer of a node any more


def discover(address: Address, topology: Topology) -> None:
    """Find out which node serves which partition, from a thread.

    Raises:
        TransientError: No node answered. A later search may succeed.
        CoordinatorError: The nodes refused the question, for example because of a wrong password.
    """
    steps = topology.search()
    try:
        question = next(steps)
        while True:
            question = steps.send(_ask(address, question))
    except StopIteration:
        return


async def discover_async(address: Address, topology: Topology) -> None:
    """Find out which node serves which partition, from an event loop.

    Raises:
        TransientError: No node answered. A later search may succeed.
        CoordinatorError: The nodes refused the question, for example because of a wrong password.
    """
    steps = topology.search()
    try:
        question = next(steps)
        while True:
            question = steps.send(await _ask_async(address, question))
    except StopIteration:
        return


def _ask(address: Address, question: Question) -> Any:
    pool = make_pool(
        address, question.node, QUESTION_SECONDS, sentinel=question.sentinel, connect_seconds=QUESTION_SECONDS
    )
    try:
        reply = exchange(pool.get_connection(), [list(question.command)])[0]
        return _map(reply, address, question) if isinstance(reply, Exception) else reply
    except Exception as error:  # noqa: BLE001  # after any failure, the search asks the next node
        return _map(error, address, question)
    finally:
        pool.disconnect()


async def _ask_async(address: Address, question: Question) -> Any:
    pool = make_async_pool(address, question.node, sentinel=question.sentinel, connect_seconds=QUESTION_SECONDS)
    try:
        async with asyncio.timeout(QUESTION_SECONDS):
            reply = (await exchange_async(await pool.get_connection(), [list(question.command)]))[0]
        return _map(reply, address, question) if isinstance(reply, Exception) else reply
    except Exception as error:  # noqa: BLE001  # after any failure, the search asks the next node
        return _map(error, address, question)
    finally:
        await pool.disconnect()


def _map(error: Exception, address: Address, question: Question) -> Exception:
    return map_error(error, address, sent=False, node=question.node, sentinel=question.sentinel)
