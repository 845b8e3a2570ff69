"""Lazy reruns: from the forward values that are kept to the sequence of runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

import numpy as np
from numba import njit
from numpy.typing import NDArray

from lowtide.planners.step import Step

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
NOTHING: Mapping[int, Collection[int]] = MappingProxyType({})


def expand(step: Step, kept: Collection[int], drops: Mapping[int, Collection[int]] = NOTHING) -> list[int]:
    """The sequence that keeps the values `kept` across the boundary and makes every other one again.

    Forward ops in the program's order; then each backward op in the program's order, preceded by the reruns of
    what it reads and is not there, and of what those need, in the program's order: as late as possible. A value
    that is there stays until the last op that reads it, but for the values `drops[b]`: they are dropped after
    backward op b, and made anew when they are needed next.

    What cannot be made again, and outputs, are kept whatever `kept` and `drops` say. A forward op that is not
    needed before backward begins, and of whose writes none is kept, has its first run in backward.
    Time O(n) plus that of the runs that come out.
    """
    there = np.zeros(len(step.writer), dtype=bool)
    there[list(kept)] = True
    pairs = sorted(b * there.size + v for b, values in drops.items() for v in values)
    runs, _ = expanded(step, there, np.array(pairs, dtype=np.int64))
    return [int(op) for op in runs]


def expanded(step: Step, kept: Bools, drops: Ints) -> tuple[Ints, int]:
    """`expand` on arrays, for those who ask thousands of times: `kept` by value, and drops as in `choice.Choice`.

    Returns the sequence, and the place of its first backward op.
    """
    flags, arrays = step.flags, step.program.arrays
    runs, begin = _expand(
        step.boundary,
        arrays.reads_start,
        arrays.reads,
        arrays.writes_start,
        arrays.writes,
        arrays.writer,
        flags.always,
        flags.movable,
        flags.essential,
        kept,
        drops,
    )
    return runs, begin


@njit(cache=True)
def _in_order(needed: Ints, found: int, marked: Ints, mark: int) -> None:
    """Sort the first `found` of `needed`, which are the ops with this mark (a general sort is slow to compile)."""
    if found < 32:
        for i in range(1, found):
            op = needed[i]
            j = i
            while j and needed[j - 1] > op:
                needed[j] = needed[j - 1]
                j -= 1
            needed[j] = op
        return
    least = most = needed[0]
    for i in range(1, found):
        least = min(least, needed[i])
        most = max(most, needed[i])
    count = 0
    for op in range(least, most + 1):
        if marked[op] == mark:
            needed[count] = op
            count += 1


@njit(cache=True)
def _expand(
    boundary: int,
    reads_start: Ints,
    reads: Ints,
    writes_start: Ints,
    writes: Ints,
    writer: Ints,
    always: Bools,
    movable: Bools,
    essential: Bools,
    kept: Bools,
    drops: Ints,
) -> tuple[Ints, int]:
    ops = reads_start.size - 1
    # What is in memory when backward begins, and which ops must have run.
    there = always.copy()
    wanted = essential.copy()
    for v in range(kept.size):
        if kept[v]:
            there[v] = True
            if movable[v]:
                wanted[writer[v]] = True
    backward = np.empty(2 * ops + 16, dtype=np.int64)
    count = 0
    needed = np.empty(boundary + 1, dtype=np.int64)
    # Marks the backward op for which an op was last found to be needed.
    marked = np.full(boundary + 1, -1, dtype=np.int64)
    later = np.zeros(boundary + 1, dtype=np.bool_)
    drop = 0
    for b in range(boundary, ops):
        found = 0
        for at in range(reads_start[b], reads_start[b + 1]):
            v = reads[at]
            op = writer[v]
            if op < boundary and not there[v] and marked[op] != b:
                marked[op] = b
                needed[found] = op
                found += 1
        seen = 0
        while seen < found:
            op = needed[seen]
            seen += 1
            for at in range(reads_start[op], reads_start[op + 1]):
                v = reads[at]
                maker = writer[v]
                if not there[v] and marked[maker] != b:
                    marked[maker] = b
                    needed[found] = maker
                    found += 1
        if count + found + 1 > backward.size:
            shorter = backward
            backward = np.empty(2 * (count + found + 1), dtype=np.int64)
            for i in range(count):
                backward[i] = shorter[i]
        _in_order(needed, found, marked, b)
        for i in range(found):
            op = needed[i]
            later[op] = True
            backward[count] = op
            count += 1
            for at in range(writes_start[op], writes_start[op + 1]):
                there[writes[at]] = True
        backward[count] = b
        count += 1
        while drop < drops.size and drops[drop] // kept.size <= b:
            if drops[drop] // kept.size == b:
                v = drops[drop] % kept.size
                there[v] = always[v]
            drop += 1
    forward = 0
    for op in range(boundary - 1, -1, -1):
        # What is never run in backward runs in forward; so does what such an op reads.
        if wanted[op] or not later[op]:
            wanted[op] = True
            forward += 1
            for at in range(reads_start[op], reads_start[op + 1]):
                wanted[writer[reads[at]]] = True
    runs = np.empty(forward + count, dtype=np.int64)
    place = 0
    for op in range(boundary):
        if wanted[op]:
            runs[place] = op
            place += 1
    for i in range(count):
        runs[place + i] = backward[i]
    return runs, forward
