"""Replay: what memory holds while a sequence runs, reckoned by the planners themselves, fast.

The referee judges a finished plan; planners replay thousands of tries. The two share no code, so that a mistake in
one shows up as a disagreement. A sequence that reads a value never made is a planner's own mistake, and asserted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from lowtide.program import Program

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Replay:
    """What a sequence costs.

    timeline   bytes in memory during each run, static values not counted
    peak       the largest of them; 0 for no runs
    time       nanoseconds of all runs together
    """

    timeline: Ints
    peak: int
    time: int

    @property
    def at(self) -> int:
        """Place in the sequence of the first run that reaches the peak."""
        return int(self.timeline.argmax())


def replay(program: Program, runs: Sequence[int] | Ints) -> Replay:
    """Replay `runs`: every access holds its value until the next access of that value, when that one is a read.

    Time O(n): a value is there from the write of a copy to the copy's last access, and the first copy of an output
    to the end.
    """
    arrays = program.arrays
    order = np.asarray(runs, dtype=np.int64).reshape(-1)
    if not order.size:
        return Replay(np.zeros(0, dtype=np.int64), 0, 0)
    timeline, unmade, peak, time = _timeline(
        order,
        arrays.reads_start,
        arrays.reads,
        arrays.writes_start,
        arrays.writes,
        arrays.bytes,
        arrays.output,
        arrays.scratch,
        arrays.ns,
    )
    assert unmade < 0, "a planner's sequence reads a value before it is made"
    return Replay(timeline, peak, time)


@njit(cache=True)
def _timeline(
    runs: Ints,
    reads_start: Ints,
    reads: Ints,
    writes_start: Ints,
    writes: Ints,
    size: Ints,
    output: Bools,
    scratch: Ints,
    ns: Ints,
) -> tuple[Ints, int, int, int]:
    """Bytes at every run; the place of a read of what is not made, -1 where there is none; the peak; the time."""
    count = runs.size
    change = np.zeros(count + 1, dtype=np.int64)
    last = np.full(size.size, -1, dtype=np.int64)
    stays = output.copy()
    for place in range(count):
        op = runs[place]
        for at in range(reads_start[op], reads_start[op + 1]):
            v = reads[at]
            if last[v] < 0:
                return change, place, 0, 0
            last[v] = place
        for at in range(writes_start[op], writes_start[op + 1]):
            v = writes[at]
            if last[v] >= 0:
                if not stays[v]:
                    change[last[v] + 1] -= size[v]
                stays[v] = False
            last[v] = place
            change[place] += size[v]
    for v in range(size.size):
        if last[v] >= 0 and not stays[v]:
            change[last[v] + 1] -= size[v]
    timeline = np.empty(count, dtype=np.int64)
    there, peak, time = 0, 0, 0
    for place in range(count):
        there += change[place]
        timeline[place] = there + scratch[runs[place]]
        peak = max(peak, timeline[place])
        time += ns[runs[place]]
    return timeline, -1, peak, time
