"""Numbers that a worker process writes and its supervisor reads, in memory that both share.

The supervisor opens a file without a name, and the process maps it. A number is a cell of 8 bytes that one thread writes in place.
So a count costs one addition, and the numbers of a process that is killed are exact up to its last instant.

The file begins with a header of JSON that says which metric each cell belongs to. So a supervisor can read the cells of a process
that runs newer or older code, and skip the metrics that it does not know.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import tempfile
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.metrics.catalog import ATTEMPTS, CATALOG, ENDED, ENDINGS, MOST_KINDS, OTHER, Metric
from coordinator.metrics.samples import Distribution, Samples

HEADER_BYTES = 128 * 1024
_LENGTH = struct.Struct("<Q")


def open_shared_file() -> int:
    """Return the descriptor of a file without a name, for the cells of a new worker process."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("run-coordinator-metrics", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # a system without memfd_create, such as macOS
        return os.dup(file.fileno())


@dataclass(frozen=True, slots=True)
class Series:
    """One series of a metric: its labels, without the kind, and the position of its first cell.

    A counter or a gauge has one cell. A histogram has one for each bucket, one for larger values, and one for the sum.
    """

    metric: Metric
    labels: tuple[str, ...]
    at: int

    @property
    def cells(self) -> int:
        """The number of cells that the series has."""
        return len(self.metric.bounds) + 2 if self.metric.type == "histogram" else 1


def lay_out(wanted: Sequence[tuple[Metric, tuple[str, ...]]], start: int = 0) -> list[Series]:
    """Assign consecutive cells to the wanted series, beginning with cell `start`, and return the series with their positions."""
    found, at = list[Series](), start
    for metric, labels in wanted:
        found.append(Series(metric, labels, at))
        at += found[-1].cells
    return found


class Cells:
    """The cells of one worker process.

    Args:
        kinds: The kinds of the process. Kinds beyond the limit share the cells of the kind "other".
        per_kind: The series that each kind has. The label `kind` comes first and is left out here.
        single: The series that the process has once.
        file: The descriptor of the shared file; None to keep the cells in the process.

    Attributes:
        values: The numbers. `values[at] += 1` counts.
        base: The position of the first cell of each kind.
    """

    def __init__(
        self,
        kinds: Sequence[str],
        per_kind: Sequence[tuple[Metric, tuple[str, ...]]],
        single: Sequence[tuple[Metric, tuple[str, ...]]],
        file: int | None = None,
    ) -> None:
        self.single = lay_out(single)
        self.per_kind = lay_out(per_kind)
        start = sum(one.cells for one in self.single)
        stride = sum(one.cells for one in self.per_kind)
        named = [*sorted(kinds)[:MOST_KINDS], *([OTHER] if len(kinds) > MOST_KINDS else [])]
        self.base = {kind: start + stride * min(i, len(named) - 1) for i, kind in enumerate(sorted(kinds))}
        size = start + stride * len(named)
        header = json.dumps(
            {
                "kinds": named,
                "start": start,
                "stride": stride,
                "single": [_describe(one) for one in self.single],
                "per_kind": [_describe(one) for one in self.per_kind],
            }
        ).encode()
        if file is None or len(header) + _LENGTH.size > HEADER_BYTES:
            self._memory: Any = bytearray(HEADER_BYTES + 8 * size)
        else:
            os.ftruncate(file, HEADER_BYTES + 8 * size)
            self._memory = mmap.mmap(file, HEADER_BYTES + 8 * size)
        self.values = memoryview(self._memory)[HEADER_BYTES:].cast("d")
        self._memory[_LENGTH.size : _LENGTH.size + len(header)] = header
        self._memory[: _LENGTH.size] = _LENGTH.pack(len(header))  # last: from here on the header can be read

    def at(self, metric: Metric, *labels: str) -> int:
        """Return the position of the first cell of a series that the process has once."""
        return next(one.at for one in self.single if one.metric is metric and one.labels == labels)

    def offset(self, metric: Metric, *labels: str) -> int:
        """Return the position of a series among the cells of a kind. Add it to `base[kind]` to get the first cell of the series."""
        return next(one.at for one in self.per_kind if one.metric is metric and one.labels == labels)

    def read(self) -> Samples:
        """Return the present values of all series."""
        return read_cells(bytes(self._memory))


def _describe(one: Series) -> list[Any]:
    return [one.metric.name, list(one.labels), one.at, list(one.metric.bounds)]


def read_shared_file(file: int) -> Samples:
    """Return the values in a shared file. They are empty if the process has not written its header yet."""
    size = os.fstat(file).st_size
    return read_cells(os.pread(file, size, 0)) if size > HEADER_BYTES else Samples()


def read_cells(data: bytes) -> Samples:
    """Return the values of a process from the bytes of its shared file."""
    samples = Samples()
    (length,) = _LENGTH.unpack_from(data)
    if not 0 < length <= HEADER_BYTES - _LENGTH.size:
        return samples
    header = json.loads(data[_LENGTH.size : _LENGTH.size + length])
    values = array("d", data[HEADER_BYTES:])
    for name, labels, at, bounds in header["single"]:
        _add(samples, values, name, labels, at, bounds)
    for number, kind in enumerate(header["kinds"]):
        base = header["start"] + number * header["stride"]
        for name, labels, at, bounds in header["per_kind"]:
            _add(samples, values, name, [kind, *labels], base + at, bounds)
    _add_ended_runs(samples)
    return samples


def _add_ended_runs(samples: Samples) -> None:
    """Add the number of ended runs. It is derived from the outcomes of attempts, so that an attempt is counted in one cell only."""
    for (kind, outcome), count in samples.values.get(ATTEMPTS.name, {}).items():
        if outcome in ENDINGS:
            samples.add(ENDED, count, kind, outcome)


def _add(samples: Samples, values: Sequence[float], name: str, labels: list[str], at: int, bounds: list[float]) -> None:
    """Add the values of one series to `samples`, unless this version does not know the metric or has other bounds for it."""
    metric = CATALOG.get(name)
    if metric is None or len(labels) != len(metric.labels) or list(metric.bounds) != bounds:
        return
    if metric.type != "histogram":
        if values[at] or metric.type == "gauge" or not labels:
            samples.add(metric, values[at], *labels)
        return
    buckets = len(bounds) + 1
    distribution = Distribution(list(values[at : at + buckets]), values[at + buckets])
    if any(distribution.counts) or not labels:
        samples.observe(metric, distribution, *labels)
