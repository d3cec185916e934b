"""The head of a stored checkpoint: ten numbers, as lua/shared/checkpoint.lua writes them."""

from __future__ import annotations

from dataclasses import dataclass, fields

from coordinator.errors import Unreadable


@dataclass(frozen=True, slots=True)
class CheckpointHead:
    """The numbers of a checkpoint, in the order in which they are stored. The defaults describe a run without a checkpoint.

    Attributes:
        seq: The number of the last save.
        generation: The number of the transcript. It grows when a handler replaces its messages.
        length: The number of messages.
        iteration: The iteration of the handler's loop.
        peak: The highest iteration so far.
        progress: The number of saves that count as progress.
        schema: The schema of the handler that saved.
        updated: The time of the last save, in Unix milliseconds.
        appended: The number of messages that were ever appended.
        size: The size of the messages, in bytes.
    """

    seq: int = 0
    generation: int = 1
    length: int = 0
    iteration: int = 0
    peak: int = 0
    progress: int = 0
    schema: int = 0
    updated: int = 0
    appended: int = 0
    size: int = 0

    @classmethod
    def parse(cls, text: bytes) -> CheckpointHead:
        """Return the head from its stored form.

        Raises:
            Unreadable: The bytes are not ten numbers.
        """
        try:
            numbers = [int(part) for part in text.split()]
        except (ValueError, TypeError):
            numbers = []
        if len(numbers) != _NUMBERS:
            raise Unreadable(f"the head of the checkpoint can't be read: {text!r:.80}")
        return cls(*numbers)


_NUMBERS = len(fields(CheckpointHead))
NO_CHECKPOINT = CheckpointHead()
