"""Handles: references to runs, which `enqueue` and `handle` return. Both classes have the same methods."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from coordinator.client.operations import runs as run_operations
from coordinator.client.operations import signals as signal_operations
from coordinator.client.output.reading import stream, stream_async
from coordinator.client.output.transcript import Pages, iterate, iterate_async
from coordinator.model.output import Folder, Item
from coordinator.model.policies.budget import Amount
from coordinator.model.run import RunView, Status

if TYPE_CHECKING:
    from coordinator.client.async_client import AsyncClient
    from coordinator.client.client import Client

T_co = TypeVar("T_co", covariant=True)

CANCEL_GRACE = 30.0


class Handle(Generic[T_co]):
    """A reference to a run, for threads.

    Attributes:
        id: The id of the run.
        created: False if the idempotency key of the enqueue belonged to a run that already existed.
    """

    __slots__ = ("_client", "_read_result", "_write_signal", "created", "id")

    def __init__(
        self,
        client: Client,
        id: str,
        created: bool = False,
        read_result: Callable[[Any], Any] | None = None,
        write_signal: signal_operations.WriteSignal | None = None,
    ) -> None:
        """Make a handle. Programs get handles from `enqueue` and `handle`."""
        self._client, self.id, self.created = client, id, created
        self._read_result, self._write_signal = read_result, write_signal

    def __repr__(self) -> str:
        """Return a text with the id of the run."""
        return f"<run {self.id}>"

    def view(self) -> RunView:
        """Read the run from the server, and return a view of it.

        Raises:
            NotFound: The run does not exist, or its retention is over.
            Unreadable: The stored run is damaged.
        """
        return self._client._do(run_operations.view, self.id)

    def wait(self, timeout: float | None = None) -> Status:
        """Wait until the run has ended, and return the status in which it ended.

        Args:
            timeout: Seconds to wait; None waits forever.

        Raises:
            ResultTimeout: The run has not ended in time.
            NotFound: The run does not exist, or its retention is over.
        """
        return self._client._ending(self.id, timeout).status

    def result(self, timeout: float | None = None) -> T_co:
        """Wait until the run has ended, and return the result of its handler.

        If the run was enqueued with `handler.inputs(…)` or with the handler, a result such as a dataclass or a pydantic model has
        the type that the handler declares. Otherwise the result is plain data.

        Args:
            timeout: Seconds to wait; None waits forever.

        Raises:
            RunFailed: The run failed.
            RunDead: The run was set aside after repeated losses.
            RunCancelled: The run was cancelled.
            ResultTimeout: The run has not ended in time.
            NotFound: The run does not exist, or its result is not kept.
        """
        result: T_co = self._client._ending(self.id, timeout).result()
        return result if self._read_result is None else self._read_result(result)

    def grant(self, *, usd: float | Decimal = 0, tokens: int = 0, requests: int = 0) -> None:
        """Let the run spend more than its budget. A run that waits for a grant is woken.

        A failed, dead or cancelled run can use the grant after it is revived.

        Args:
            usd: Dollars to add to the budget.
            tokens: Tokens to add to the budget.
            requests: Requests to add to the budget.

        Raises:
            Ended: The run has completed, or its inputs were not kept.
            Full: The run has 1,000 grants already.
            NotFound: The run does not exist, or its retention is over.
            BadOption: A number is not valid, or all three are 0.
            Unconfirmed: The server did not answer. The amount may have been granted: look at the run before you repeat the call.
        """
        self._client._do(signal_operations.grant, self.id, Amount.of(usd, tokens, requests))

    def send(self, topic: str, payload: object = None, *, key: str | None = None) -> bool:
        """Send a signal to the run. The run's handler receives it with `run.receive(topic)`.

        The server stores the signal first, then wakes the run if it waits for the topic. A signal may be sent before the run
        waits for it, and before the run starts.

        Args:
            topic: The name of the topic: 1 to 100 characters of `A-Z a-z 0-9 _ . -`.
            payload: The value that the handler receives: plain data of up to 1 MiB. If the handle comes from an enqueue with the
                handler, and the handler declares a type for the topic, a value of this type.
            key: The idempotency key of the signal, 1 to 512 characters. The server stores one signal for each key; it knows the
                last 10,000 keys of a run.

        Returns:
            True if this call stored the signal; False if a signal with this key was sent to the run before.

        Raises:
            Ended: The run has ended.
            Full: The run has 1,000 signals, or 16 MiB of them, that it has not received yet.
            NotFound: The run does not exist, or its retention is over.
            NotPlain: The payload has a type that can't be stored.
            TooLarge: The payload is larger than 1 MiB.
            BadName: The topic is not a valid name.
            BadOption: The key is not valid.
            Unreachable: The server can't be reached; the signal was not stored.
            Unconfirmed: The server did not answer. Send again with the same key. Without a key, the signal may be stored twice.
            Unreadable: A Redis key of the run's signals is damaged.
        """
        return self._client._do(signal_operations.send, self.id, topic, payload, key, self._write_signal)

    def stream(
        self, *, after: str | None = None, settled: bool = False, timeout: float | None = None
    ) -> Generator[Item, None, None]:
        """Iterate over the output of the run: the events that its handler emits, until the run has ended.

        The iterator first delivers the stored events, and then new events as they come. It ends when the run has ended;
        `result` then says how. The server keeps the last 10,000 events of a run, up to 4 MiB, for as long as the run is kept.

        Args:
            after: The id of the last item that the reader has got; None to begin with the first event.
            settled: Deliver an event only when a checkpoint covers it, so that no later attempt emits it again. A reader
                then gets each event exactly once, in order, or a `Gap`. It gets a `Rewind` only if the run starts again from
                the beginning. The completion of a run covers all its events. If a run ends in another way, the events after its
                last checkpoint are not delivered.
            timeout: Seconds without an item after which the iterator raises ResultTimeout; None waits forever.

        Returns:
            An iterator over the items. An `Event` has a number and a value. A `Rewind` tells the reader to drop all events
            with a number greater than `to`, because the run continues from its checkpoint. A `Gap` says that a number of
            events is missing.

        Raises:
            NotFound: The run does not exist, or its retention is over.
            BadOption: `after` is not the id of an item.
            ResultTimeout: Nothing came in time, and the run has not ended.
            Unreadable: A stored event is damaged.
        """
        return stream(self._client, self.id, Folder(after, settled), timeout)

    def messages(self, start: int = 0) -> Iterator[Any]:
        """Iterate over the saved messages of the run's transcript. The client reads them in pages of about 1 MiB.

        The messages of a completed run are deleted with its checkpoint, unless its handler has `keep_messages=True`. The messages
        of other runs are kept as long as the run.

        Args:
            start: The number of the first message, from 0.

        Returns:
            An iterator over the messages that are saved at the time of reading.

        Raises:
            NotFound: The run does not exist, or its retention is over.
            BadOption: The number is negative.
            Changed: The handler has replaced its transcript while the messages were read.
            Unreadable: The stored checkpoint is damaged.
        """
        return iterate(self._client, Pages(self.id, start))

    def cancel(self, grace: float = CANCEL_GRACE) -> Status:
        """Cancel the run.

        A queued, delayed or waiting run is cancelled immediately. The worker of a running run is asked to stop it. An ended run
        does not change.

        Args:
            grace: Seconds that the handler has to stop. A run that has not stopped then is ended by force.

        Returns:
            CANCELLED; RUNNING if the worker was asked; or the status in which the run had ended before.
        """
        return self._client._do(run_operations.cancel, self.id, grace)

    def cancel_tree(self, grace: float = CANCEL_GRACE) -> dict[str, Status]:
        """Cancel the run and every run below it: the runs that its handler enqueued, those that their handlers enqueued, and so on.

        From now on an enqueue below the run raises TreeCancelled, until the run is revived.

        Args:
            grace: Seconds that each handler has to stop.

        Returns:
            The status of each run by its id, as `cancel` returns it.
        """
        return self._client._do(run_operations.cancel_tree, self.id, grace)

    def revive(self, from_start: bool = False, *, forget_effects: bool | Sequence[str] = False) -> None:
        """Queue a failed, dead or cancelled run again. It continues from its checkpoint.

        Args:
            from_start: Drop the checkpoint, so that the handler starts from the beginning. The effects of `run.once` are kept.
            forget_effects: True to forget all effects of `run.once`, or the names of the effects to forget. The functions of
                forgotten effects are called again.

        Raises:
            Changed: The run has not ended, has completed, or was revived by another call.
            KeyConflict: The run's idempotency key belongs to another run by now.
            NotFound: The run does not exist, or its inputs were not kept.
            Unreadable: The checkpoint is damaged: revive the run from the start.
            BadOption: `forget_effects` is a text, or names an effect that the run does not have.
        """
        self._client._do(run_operations.revive, self.id, from_start, forget_effects)

    def discard(self) -> Status:
        """Remove an ended run and its checkpoint, and return the status in which the run had ended.

        Raises:
            Changed: The run has not ended, or was revived meanwhile.
            NotFound: The run does not exist, or its retention is over.
        """
        return self._client._do(run_operations.discard, self.id)

    def position(self) -> int | None:
        """Return the number of runs of the same queue and kind that workers take before this run; None if it is not queued."""
        return self._client._do(run_operations.position, self.id)


class AsyncHandle(Generic[T_co]):
    """A reference to a run, for an event loop.

    Attributes:
        id: The id of the run.
        created: False if the idempotency key of the enqueue belonged to a run that already existed.
    """

    __slots__ = ("_client", "_read_result", "_write_signal", "created", "id")

    def __init__(
        self,
        client: AsyncClient,
        id: str,
        created: bool = False,
        read_result: Callable[[Any], Any] | None = None,
        write_signal: signal_operations.WriteSignal | None = None,
    ) -> None:
        """Make a handle. Programs get handles from `enqueue` and `handle`."""
        self._client, self.id, self.created = client, id, created
        self._read_result, self._write_signal = read_result, write_signal

    def __repr__(self) -> str:
        """Return a text with the id of the run."""
        return f"<run {self.id}>"

    async def view(self) -> RunView:
        """Read the run from the server, and return a view of it.

        Raises:
            NotFound: The run does not exist, or its retention is over.
            Unreadable: The stored run is damaged.
        """
        return await self._client._do(run_operations.view, self.id)

    async def wait(self, timeout: float | None = None) -> Status:
        """Wait until the run has ended, and return the status in which it ended.

        Args:
            timeout: Seconds to wait; None waits forever.

        Raises:
            ResultTimeout: The run has not ended in time.
            NotFound: The run does not exist, or its retention is over.
        """
        return (await self._client._ending(self.id, timeout)).status

    async def result(self, timeout: float | None = None) -> T_co:
        """Wait until the run has ended, and return the result of its handler.

        If the run was enqueued with `handler.inputs(…)` or with the handler, a result such as a dataclass or a pydantic model has
        the type that the handler declares. Otherwise the result is plain data.

        Args:
            timeout: Seconds to wait; None waits forever.

        Raises:
            RunFailed: The run failed.
            RunDead: The run was set aside after repeated losses.
            RunCancelled: The run was cancelled.
            ResultTimeout: The run has not ended in time.
            NotFound: The run does not exist, or its result is not kept.
        """
        result: T_co = (await self._client._ending(self.id, timeout)).result()
        return result if self._read_result is None else self._read_result(result)

    async def grant(self, *, usd: float | Decimal = 0, tokens: int = 0, requests: int = 0) -> None:
        """Let the run spend more than its budget. A run that waits for a grant is woken.

        A failed, dead or cancelled run can use the grant after it is revived.

        Args:
            usd: Dollars to add to the budget.
            tokens: Tokens to add to the budget.
            requests: Requests to add to the budget.

        Raises:
            Ended: The run has completed, or its inputs were not kept.
            Full: The run has 1,000 grants already.
            NotFound: The run does not exist, or its retention is over.
            BadOption: A number is not valid, or all three are 0.
            Unconfirmed: The server did not answer. The amount may have been granted: look at the run before you repeat the call.
        """
        await self._client._do(signal_operations.grant, self.id, Amount.of(usd, tokens, requests))

    async def send(self, topic: str, payload: object = None, *, key: str | None = None) -> bool:
        """Send a signal to the run. The run's handler receives it with `run.receive(topic)`.

        The server stores the signal first, then wakes the run if it waits for the topic. A signal may be sent before the run
        waits for it, and before the run starts.

        Args:
            topic: The name of the topic: 1 to 100 characters of `A-Z a-z 0-9 _ . -`.
            payload: The value that the handler receives: plain data of up to 1 MiB. If the handle comes from an enqueue with the
                handler, and the handler declares a type for the topic, a value of this type.
            key: The idempotency key of the signal, 1 to 512 characters. The server stores one signal for each key; it knows the
                last 10,000 keys of a run.

        Returns:
            True if this call stored the signal; False if a signal with this key was sent to the run before.

        Raises:
            Ended: The run has ended.
            Full: The run has 1,000 signals, or 16 MiB of them, that it has not received yet.
            NotFound: The run does not exist, or its retention is over.
            NotPlain: The payload has a type that can't be stored.
            TooLarge: The payload is larger than 1 MiB.
            BadName: The topic is not a valid name.
            BadOption: The key is not valid.
            Unreachable: The server can't be reached; the signal was not stored.
            Unconfirmed: The server did not answer. Send again with the same key. Without a key, the signal may be stored twice.
            Unreadable: A Redis key of the run's signals is damaged.
        """
        return await self._client._do(signal_operations.send, self.id, topic, payload, key, self._write_signal)

    def stream(
        self, *, after: str | None = None, settled: bool = False, timeout: float | None = None
    ) -> AsyncGenerator[Item, None]:
        """Iterate over the output of the run: the events that its handler emits, until the run has ended.

        The iterator first delivers the stored events, and then new events as they come. It ends when the run has ended;
        `result` then says how. The server keeps the last 10,000 events of a run, up to 4 MiB, for as long as the run is kept.

        Args:
            after: The id of the last item that the reader has got; None to begin with the first event.
            settled: Deliver an event only when a checkpoint covers it, so that no later attempt emits it again. A reader
                then gets each event exactly once, in order, or a `Gap`. It gets a `Rewind` only if the run starts again from
                the beginning. The completion of a run covers all its events. If a run ends in another way, the events after its
                last checkpoint are not delivered.
            timeout: Seconds without an item after which the iterator raises ResultTimeout; None waits forever.

        Returns:
            An iterator over the items. An `Event` has a number and a value. A `Rewind` tells the reader to drop all events
            with a number greater than `to`, because the run continues from its checkpoint. A `Gap` says that a number of
            events is missing.

        Raises:
            NotFound: The run does not exist, or its retention is over.
            BadOption: `after` is not the id of an item.
            ResultTimeout: Nothing came in time, and the run has not ended.
            Unreadable: A stored event is damaged.
        """
        return stream_async(self._client, self.id, Folder(after, settled), timeout)

    def messages(self, start: int = 0) -> AsyncIterator[Any]:
        """Iterate over the saved messages of the run's transcript. The client reads them in pages of about 1 MiB.

        The messages of a completed run are deleted with its checkpoint, unless its handler has `keep_messages=True`. The messages
        of other runs are kept as long as the run.

        Args:
            start: The number of the first message, from 0.

        Returns:
            An iterator over the messages that are saved at the time of reading.

        Raises:
            NotFound: The run does not exist, or its retention is over.
            BadOption: The number is negative.
            Changed: The handler has replaced its transcript while the messages were read.
            Unreadable: The stored checkpoint is damaged.
        """
        return iterate_async(self._client, Pages(self.id, start))

    async def cancel(self, grace: float = CANCEL_GRACE) -> Status:
        """Cancel the run.

        A queued, delayed or waiting run is cancelled immediately. The worker of a running run is asked to stop it. An ended run
        does not change.

        Args:
            grace: Seconds that the handler has to stop. A run that has not stopped then is ended by force.

        Returns:
            CANCELLED; RUNNING if the worker was asked; or the status in which the run had ended before.
        """
        return await self._client._do(run_operations.cancel, self.id, grace)

    async def cancel_tree(self, grace: float = CANCEL_GRACE) -> dict[str, Status]:
        """Cancel the run and every run below it: the runs that its handler enqueued, those that their handlers enqueued, and so on.

        From now on an enqueue below the run raises TreeCancelled, until the run is revived.

        Args:
            grace: Seconds that each handler has to stop.

        Returns:
            The status of each run by its id, as `cancel` returns it.
        """
        return await self._client._do(run_operations.cancel_tree, self.id, grace)

    async def revive(self, from_start: bool = False, *, forget_effects: bool | Sequence[str] = False) -> None:
        """Queue a failed, dead or cancelled run again. It continues from its checkpoint.

        Args:
            from_start: Drop the checkpoint, so that the handler starts from the beginning. The effects of `run.once` are kept.
            forget_effects: True to forget all effects of `run.once`, or the names of the effects to forget. The functions of
                forgotten effects are called again.

        Raises:
            Changed: The run has not ended, has completed, or was revived by another call.
            KeyConflict: The run's idempotency key belongs to another run by now.
            NotFound: The run does not exist, or its inputs were not kept.
            Unreadable: The checkpoint is damaged: revive the run from the start.
            BadOption: `forget_effects` is a text, or names an effect that the run does not have.
        """
        await self._client._do(run_operations.revive, self.id, from_start, forget_effects)

    async def discard(self) -> Status:
        """Remove an ended run and its checkpoint, and return the status in which the run had ended.

        Raises:
            Changed: The run has not ended, or was revived meanwhile.
            NotFound: The run does not exist, or its retention is over.
        """
        return await self._client._do(run_operations.discard, self.id)

    async def position(self) -> int | None:
        """Return the number of runs of the same queue and kind that workers take before this run; None if it is not queued."""
        return await self._client._do(run_operations.position, self.id)
