"""Explore every state of a small model, breadth-first, and report the shortest history that breaks an invariant."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)


class Broken(AssertionError):
    """An invariant that does not hold, with the shortest history that breaks it."""

    def __init__(self, what: str, steps: list[str]) -> None:
        super().__init__(f"{what}:\n  " + "\n  ".join(steps))
        self.what = what


@dataclass
class Explored(Generic[S]):
    """What an exploration found.

    Attributes:
        states: Every state that can be reached.
        edges: The number of steps between them.
    """

    states: list[S]
    edges: int


def explore(
    start: S,
    steps: Callable[[S], Iterable[tuple[str, S]]],
    check: Callable[[S], str | None],
    is_end: Callable[[S], bool],
) -> Explored[S]:
    """Visit every state that the steps can reach from `start`.

    Args:
        start: The first state.
        steps: Returns the steps that are possible in a state: their names and the next states.
        check: Returns what is wrong with a state, or None.
        is_end: Returns True for a state in which the run has ended. Every state must have a way to such a state.

    Raises:
        Broken: A state is wrong, or no ending can be reached from it.
    """
    states, numbers = [start], {start: 0}
    came_from: list[tuple[int, str]] = [(0, "")]
    before: list[list[int]] = [[]]
    edges, waiting = 0, deque([0])

    def history(number: int) -> list[str]:
        names: list[str] = []
        while number:
            number, name = came_from[number]
            names.append(name)
        return names[::-1]

    while waiting:
        here = waiting.popleft()
        if wrong := check(states[here]):
            raise Broken(wrong, history(here))
        for name, state in steps(states[here]):
            edges += 1
            number = numbers.get(state)
            if number is None:
                number = numbers[state] = len(states)
                states.append(state)
                came_from.append((here, name))
                before.append([])
                waiting.append(number)
            before[number].append(here)

    can_end = bytearray(len(states))
    ends = deque(number for number, state in enumerate(states) if is_end(state))
    for number in ends:
        can_end[number] = 1
    while ends:
        for number in before[ends.popleft()]:
            if not can_end[number]:
                can_end[number] = 1
                ends.append(number)
    stuck = next((number for number, can in enumerate(can_end) if not can), None)
    if stuck is not None:
        raise Broken("the run can't end any more", history(stuck))
    return Explored(states, edges)
