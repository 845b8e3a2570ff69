"""The working set: bytes that no plan can do without, whatever is kept and whatever is run again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from lowtide.planners.step import Step

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """The least peak of any plan with backward ops once and in the program's order: at least `bytes`, at op `at`."""

    bytes: int
    at: int

    @classmethod
    def of(cls, step: Step) -> WorkingSet:
        """The largest, over all ops, of what has to be there while the op runs.

        While op i runs, there are what it reads and writes, its scratch, gradients and outputs made and still wanted,
        and what cannot be made again and is wanted later: base(i). A value v that the backward op at t' reads is
        either there during the backward op at t < t', or made after t; then so is each thing that it is made from, or
        it was there:

            f(t, v) = base(t)                      if b_t reads v
                      min(base(t) + bytes(v), max(a + set of the op of v, f(t, u) for every u which that op reads))

        with a the least of what is there whatever is chosen between t and t', and the set of an op what it reads
        and writes and its scratch. The working set is the largest base(i) and f(t, v), asked for the reads of the
        backward op next after t.
        Time O(n times the moments for which f is asked).
        """
        base, across = _bases(step)
        arrays, boundary = step.program.arrays, step.boundary
        at = int(base.argmax()) if base.size else 0
        most = int(base[at]) if base.size else 0
        movable = np.where(step.flags.movable, arrays.bytes, 0)  # The others are there in any case.
        own = arrays.scratch + np.array(
            [int(movable[list({*reads, *writes})].sum()) for reads, writes in zip(step.reads, step.writes)],
            dtype=np.int64,
        )
        if 0 < boundary < len(step.reads):
            found, moment = _later(
                base[boundary:],
                across,
                own,
                boundary,
                arrays.reads_start,
                arrays.reads,
                arrays.writer,
                arrays.bytes,
                step.flags.movable,
            )
            if found > most:
                most, at = int(found), boundary + int(moment)
        return cls(most, at)


def _bases(step: Step) -> tuple[Ints, Ints]:
    """Per op, what is there while it runs in any plan; per moment, what is there in the instant before it.

    Forward ops may come in any order, and so only what they touch themselves is counted.
    """
    arrays, ops, boundary = step.program.arrays, len(step.reads), step.boundary
    read: dict[int, int] = {}
    for b in range(boundary, ops):
        read.update((v, b) for v in step.reads[b])
    during = np.zeros(ops + 2, dtype=np.int64)
    before = np.zeros(ops + 2, dtype=np.int64)
    lasts = [_lasts(step, v) for v in range(len(step.writer))]
    for v, op in enumerate(step.writer):
        end = ops - 1 if arrays.output[v] else read.get(v, op)
        begin = max(op, boundary)
        if not lasts[v] or end < begin:
            continue
        during[begin] += arrays.bytes[v]
        during[end + 1] -= arrays.bytes[v]
        made = op + 1 if op >= boundary else boundary
        before[made] += arrays.bytes[v]
        before[end + 1] -= arrays.bytes[v]
    base = during.cumsum()[:ops] + arrays.scratch
    for op in range(ops):
        base[op] += sum(
            int(arrays.bytes[v]) for v in {*step.reads[op], *step.writes[op]} if op < boundary or not lasts[v]
        )
    return base, before.cumsum()[boundary:ops]


def _lasts(step: Step, value: int) -> bool:
    """Whether a value, once made, is there until its last read in any plan; outputs to the end."""
    op = step.writer[value]
    if op >= step.boundary:
        return True
    return op >= 0 and (step.forced[value] or (step.held[value] and step.certain[op]))


@njit(cache=True)
def _later(
    base: Ints,
    across: Ints,
    own: Ints,
    boundary: int,
    reads_start: Ints,
    reads: Ints,
    writer: Ints,
    size: Ints,
    movable: Bools,
) -> tuple[int, int]:
    """The largest f(t, v) and its t, for the values that the next backward op with forward reads asks for."""
    moments = base.size
    most, where = 0, 0
    known = np.full(size.size, -1, dtype=np.int64)  # the moment for which f is known
    f = np.zeros(size.size, dtype=np.int64)
    stack = np.empty(boundary + 1, dtype=np.int64)
    for t in range(moments - 1):
        after = t + 1
        least = across[after]
        for at in range(reads_start[boundary + t], reads_start[boundary + t + 1]):
            v = reads[at]
            known[v] = t
            f[v] = base[t]
        for at in range(reads_start[boundary + after], reads_start[boundary + after + 1]):
            v = reads[at]
            if not movable[v]:
                continue
            depth = 0
            stack[0] = v
            while depth >= 0:
                u = stack[depth]
                if known[u] == t:
                    depth -= 1
                    continue
                kept = base[t] + size[u]
                made = least + own[writer[u]]
                waiting = False
                if made < kept:
                    for i in range(reads_start[writer[u]], reads_start[writer[u] + 1]):
                        w = reads[i]
                        if not movable[w]:
                            continue
                        if known[w] != t:
                            depth += 1
                            stack[depth] = w
                            waiting = True
                            break
                        made = max(made, f[w])
                        if made >= kept:
                            break
                if not waiting:
                    known[u] = t
                    f[u] = min(kept, made)
                    depth -= 1
            if f[v] > most:
                most, where = f[v], t
    return most, where
