"""The ids of the spans of a run, which are computed from the run's id."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from zlib import crc32

from opentelemetry.trace import SpanContext, TraceFlags

from coordinator.middleware import AttemptInfo

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


@dataclass(frozen=True, slots=True)
class Ids:
    """The ids of the spans of one life of a run."""

    run: str
    life: int
    trace: int
    root: int

    @classmethod
    def of(cls, attempt: AttemptInfo) -> Ids:
        """Return the ids of a run.

        The low half of the trace id decides whether the trace is sampled. It begins with the checksum of the run's id, see
        `SamplingMiddleware`.
        """
        run = attempt.run.encode()
        digest = blake2b(run, digest_size=12).digest()
        low = crc32(run) << 32 | int.from_bytes(digest[8:])
        return cls(
            attempt.run, attempt.life, int.from_bytes(digest[:8]) << 64 | low, _span_id(attempt.run, attempt.life, 0)
        )

    def attempt(self, number: int) -> int:
        """Return the id of the span of an attempt. Attempts are numbered over all lives of the run."""
        return _span_id(self.run, 0, number)

    def context(self, span: int, *, remote: bool = True) -> SpanContext:
        """Return the context of the span with this id. `remote` says that the span may have been made by another process."""
        return SpanContext(self.trace, span, is_remote=remote, trace_flags=_SAMPLED)


def _span_id(run: str, life: int, attempt: int) -> int:
    return int.from_bytes(blake2b(f"{run} {life} {attempt}".encode(), digest_size=8).digest()) or 1
