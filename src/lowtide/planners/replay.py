"""Replay: what memory holds while a sequence runs, reckoned by the planners themselves, fast.

The referee judges a finished plan; planners replay hundreds of tries. The two share no code, so that a mistake in
one shows up as a disagreement. A sequence that reads a value never made is a planner's own mistake, and asserted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lowtide.program import Program


@dataclass(frozen=True, slots=True)
class Replay:
    """What a sequence costs.

    timeline   bytes in memory during each run, static values not counted
    peak       the largest of them; 0 for no runs
    time       nanoseconds of all runs together
    """

    timeline: NDArray[np.int64]
    peak: int
    time: int

    @property
    def at(self) -> int:
        """Place in the sequence of the first run that reaches the peak."""
        return int(self.timeline.argmax())


def replay(program: Program, runs: Sequence[int] | NDArray[np.int64]) -> Replay:
    """Replay `runs`: every access holds its value until the next access of that value, when that one is a read."""
    arrays = program.arrays
    order = np.asarray(runs, dtype=np.int64).reshape(-1)
    count = order.size
    if not count:
        return Replay(np.zeros(0, dtype=np.int64), 0, 0)
    starts, touched, wrote = _touched(program)
    lengths = np.diff(starts)[order]
    total = int(lengths.sum())
    first = np.cumsum(lengths) - lengths
    place = np.repeat(np.arange(count), lengths)
    row = np.arange(total) + np.repeat(starts[order] - first, lengths)
    value, write = touched[row], wrote[row]
    # An op touches a value once, so (value, place) names an access: the sort need not be stable.
    by_value = np.argsort(value * count + place)
    value, place, write = value[by_value], place[by_value], write[by_value]
    fresh = np.empty(total, dtype=bool)
    fresh[:1] = True
    np.not_equal(value[1:], value[:-1], out=fresh[1:])
    assert write[fresh].all(), "a planner's sequence reads a value before it is made"
    # Alive from a write to the last access of its copy.
    last = np.append(write[1:], True)
    begin, end = place[write], place[last]
    held = value[write]
    end = np.where(fresh[write] & arrays.output[held], count - 1, end)
    size = arrays.bytes[held]
    # Sums of doubles are exact below 2**53 bytes, and bincount adds doubles much faster than ufunc.at adds integers.
    change = np.bincount(begin, weights=size, minlength=count + 1)
    change -= np.bincount(end + 1, weights=size, minlength=count + 1)
    timeline = change[:-1].cumsum().astype(np.int64) + arrays.scratch[order]
    return Replay(timeline, int(timeline.max()), int(arrays.ns[order].sum()))


def _touched(program: Program) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Reads and writes of every op in one list of rows: starts, values, whether it is a write."""
    arrays = program.arrays
    reads, writes = np.diff(arrays.reads_start), np.diff(arrays.writes_start)
    starts = np.zeros(reads.size + 1, dtype=np.int64)
    np.cumsum(reads + writes, out=starts[1:])
    values = np.empty(arrays.reads.size + arrays.writes.size, dtype=np.int64)
    wrote = np.ones(values.size, dtype=bool)
    at = np.arange(arrays.reads.size) + np.repeat(starts[:-1] - arrays.reads_start[:-1], reads)
    values[at] = arrays.reads
    wrote[at] = False
    at = np.arange(arrays.writes.size) + np.repeat(starts[:-1] + reads - arrays.writes_start[:-1], writes)
    values[at] = arrays.writes
    return starts, values, wrote
