"""Effects of a handler on the outside world that must not happen twice: `run.once`.

Before the function of an effect is called, the effect is saved as begun. After the call, the effect is saved as done, together
with its output. A later attempt that finds a done effect gets its output. If a later attempt finds an effect that is begun and not
done, it is unknown whether the effect took place: `check` finds out, and without `check` the handler gets OutcomeUnknown.

Effects belong to the run. They are not part of the checkpoint, so they outlive turns, retries from the start and revives. A save
carries only effects that are new or have changed. The server stores them in a hash of its own (see `Keys.effects`), because a part
of the checkpoint that each save writes as a whole, like `more`, would grow with each effect.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from coordinator.encoding.codec import decode, encode
from coordinator.errors import CoordinatorError, NotPlain, Refused, TooLarge
from coordinator.model.policies.retry import OutcomeUnknown
from workers.handlers.checkpoint.draft import CHECKPOINT_LIMIT, Cut, Draft
from workers.handlers.checkpoint.messages import encode_plain

MOST_EFFECTS = 10_000  # of a run, because each of them stays until the run ends
OUTPUT_LIMIT = 1024 * 1024
BEGUN, DONE = "effect:begun:", "effect:done:"


class NotDone(Exception):
    """The answer of a `check` of `run.once`: the effect has not taken place. A check may raise or return it."""


class EffectBacking(Protocol):
    """The methods of a worker, or of its stand-in in a test, that an effect calls.

    All coroutines run on the worker's event loop.
    """

    def raise_stop(self, may_drain: Callable[[], bool]) -> None:
        """Raise the requested stop, if there is one. See `Backing`."""
        ...

    def offer(self, cut: Cut) -> None:
        """Offer a cut to be saved, and return immediately."""
        ...

    async def flush(self, cut: Cut, may_drain: Callable[[], bool]) -> None:
        """Save a cut, and return when it is saved. See `Backing`."""
        ...

    async def wait_until_confirmed(self, may_drain: Callable[[], bool]) -> None:
        """Wait until the worker has confirmed its lease. See `Backing`."""
        ...

    def may_call(self) -> bool:
        """Return True if the external call of an effect may begin now. Any thread may call this.

        The answer is False while the lease is in doubt, after the run was lost, and between the request of a stop other than a
        drain and its delivery.
        """
        ...


class Postponed:
    """The answer of a call that did not take place, because the attempt may have lost its run (see `Effect.guard`)."""


def _never() -> bool:
    return False


def effect_key(run: str, name: str) -> str:
    """Return the key of an effect for another system: the same text in each attempt of the run, at most 60 ASCII characters."""
    return f"{run}-{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()[:32]}"


class Effects:
    """The effects of one attempt.

    Args:
        draft: The draft of the run's next checkpoint. It also holds the effects.
        backing: The worker's side of the attempt.
        attempt: The number of the attempt.
        token: The token of the attempt.
    """

    def __init__(self, draft: Draft, backing: EffectBacking, attempt: int, token: str) -> None:
        self._draft, self._backing, self._owner = draft, backing, [attempt, token]
        self._arguments: dict[str, bytes] = {}

    def enter(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Effect:
        """Begin a call of `run.once`. The caller calls `Effect.leave` at the end of the call.

        Raises:
            Refused: If the name is not valid, if an effect of this name is running, if the run waits, if the run has too many
                effects, or if this attempt has called the effect with other arguments before.
            TooLarge: If the checkpoint has no room for the output of the effect.
        """
        check_name(name)
        draft = self._draft
        draft.begin_effect(name)
        try:
            self._check_arguments(name, args, kwargs)
            stored = sum(field.startswith("effect:") for field in draft.phases)
            if stored >= MOST_EFFECTS and not {BEGUN + name, DONE + name} & set(draft.phases):
                raise Refused(f"a run can have {MOST_EFFECTS:,} effects, because each of them stays until the run ends")
            if draft.size + OUTPUT_LIMIT > CHECKPOINT_LIMIT and DONE + name not in draft.phases:
                raise TooLarge(
                    f"the checkpoint has {draft.size:,} bytes, and no room for the output of effect {name!r}: shorten the "
                    "transcript with run.messages.replace(…)"
                )
        except BaseException:
            draft.end_effect(name)
            raise
        return Effect(draft, self._backing, name, self._owner)

    def _check_arguments(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Refuse a second call with other arguments: it would return the output of the first call without calling the function.

        Only calls of the same attempt are compared. A later attempt may compute other arguments, for example with a model, and must
        still get the output of the effect that has taken place.
        """
        try:
            packed = hashlib.sha256(encode([[*args], dict(kwargs)], "arguments")).digest()
        except CoordinatorError:  # arguments that are not plain data can't be compared
            return
        if self._arguments.setdefault(name, packed) != packed:
            raise Refused(
                f"effect {name!r} was called with other arguments before: the second call would do nothing, because an effect "
                f"happens once per run; give each effect its own name, for example run.once(f{name + ' {id}'!r}, …)"
            )


class Effect:
    """One call of `run.once`."""

    def __init__(self, draft: Draft, backing: EffectBacking, name: str, owner: list[Any]) -> None:
        self._draft, self._backing, self._name, self._owner = draft, backing, name, owner
        self._begun, self._done = BEGUN + name, DONE + name
        self._fresh = self._begun not in draft.phases

    @property
    def is_done(self) -> bool:
        """Return True if the effect has taken place, and its output is stored."""
        return self._done in self._draft.phases

    @property
    def is_begun(self) -> bool:
        """Return True if an earlier call has begun the effect, and the effect is not known to have taken place."""
        return self._begun in self._draft.phases

    def leave(self) -> None:
        """End the call of `run.once`. From then on, another call of this effect may begin."""
        self._draft.end_effect(self._name)

    def output(self) -> Any:
        """Return the stored output of a done effect."""
        return decode(self._draft.phases[self._done], f"the output of effect {self._name!r}")

    def unknown(self) -> OutcomeUnknown:
        """Return the error for an effect that was begun and has no `check`, so that its outcome is unknown."""
        attempt, token = decode(self._draft.phases[self._begun], f"effect {self._name!r}")[:2]
        worker = str(token).split("-", 2)[-1]
        return OutcomeUnknown(
            f"it is unknown whether effect {self._name!r} took place: attempt {attempt} (worker {worker}) began it, and its end "
            "was not saved. Find out whether it did. Then revive the run with --forget-effect to call the function again, or pass "
            "check= to run.once",
            effect=self._name,
        )

    async def stop_point(self) -> None:
        """Wait until the worker has confirmed its lease, and raise a requested stop before the effect begins.

        Raises:
            Stopped: If a stop was requested.
        """
        may_drain = self._draft.resumes_without_repeating
        await self._backing.wait_until_confirmed(may_drain)
        self._backing.raise_stop(may_drain)

    async def begin(self) -> None:
        """Save the effect as begun. After this the function of the effect may be called.

        The effect is saved even if it was begun before. The save proves that the run still belongs to this attempt. A drain does
        not interrupt this method: an effect that is saved as begun must be called.

        Raises:
            Stopped: If a stop was requested. Then the effect does not count as begun, unless it was begun before.
        """
        draft, backing = self._draft, self._backing
        if self._fresh:
            draft.phases[self._begun] = encode(self._owner, "effect")
        try:
            await backing.flush(draft.cut(), _never)
            await backing.wait_until_confirmed(_never)
            backing.raise_stop(_never)
        except BaseException:
            if self._fresh:
                del draft.phases[self._begun]
                backing.offer(draft.cut())
            raise

    def guard(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls the function of the effect, or returns Postponed if the run may be lost.

        The call of a plain function may wait for a free thread for longer than the lease. After Postponed, `begin` must confirm the
        lease again. A coroutine function needs no thread, and is returned as it is.
        """
        if inspect.iscoroutinefunction(fn):
            return fn

        def guarded(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs) if self._backing.may_call() else Postponed

        return guarded

    async def finish(self, value: Any, may_drain: Callable[[], bool]) -> Any:
        """Save the effect as done, and return its output as it is read back from the store.

        Args:
            value: The output of the function.
            may_drain: Returns False where a drain must not stop the handler yet.

        Raises:
            NotPlain: If the output is not plain data. The effect stays begun.
            TooLarge: If the output is too large. The effect stays begun.
            Stopped: If a stop was requested. The effect is done, and is saved with the ending of the attempt.
        """
        draft, backing = self._draft, self._backing
        try:
            output = encode_plain(value, f"the output of effect {self._name!r}", OUTPUT_LIMIT)
        except (NotPlain, TooLarge) as error:
            error.add_note(f"effect {self._name!r} has taken place, and is stored as begun, because of its output")
            raise
        draft.phases[self._done] = output
        draft.phases.pop(self._begun, None)
        await backing.flush(draft.cut(), may_drain)
        await backing.wait_until_confirmed(may_drain)
        backing.raise_stop(may_drain)
        return decode(output, f"the output of effect {self._name!r}")


def check_name(name: str) -> None:
    """Check the name of an effect.

    Raises:
        Refused: If the name is not valid.
    """
    if str(name) != name or not 1 <= len(name) <= 200 or not name.isprintable():
        raise Refused(f"an effect needs a name of 1 to 200 printable characters, not {name!r:.220}")


def is_not_done(answer: Any) -> bool:
    """Return True if a check has answered that the effect has not taken place."""
    return answer is NotDone or isinstance(answer, NotDone)
