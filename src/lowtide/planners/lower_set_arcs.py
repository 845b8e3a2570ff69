"""The steps between lower sets that fit in a budget, and the least budget that any sequence of them fits in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lowtide.planners.dag import TOTAL, Dag
from lowtide.planners.lower_set_family import Family, Ints, LowerSets, lower_sets

FAR = 2**62


@dataclass(frozen=True, slots=True)
class Row:
    """Steps: from sets `start`, each adding `kept` bytes and `time`, open to sequences that so far keep at most `most`
    bytes.
    """

    start: NDArray[np.int32]
    kept: Ints
    time: Ints
    most: Ints


@dataclass(frozen=True, slots=True)
class Arcs:
    """All steps that fit in some sequence within a budget.

    steps   of all sets one after another; those into set p are at ends[p] up to ends[p + 1]
    groups  ranges of sets of as many members, the last ones first: no step leads from one to another of the same range
    """

    steps: Row
    ends: Ints
    groups: tuple[tuple[int, int], ...]

    def into(self, p: int) -> Row:
        """The steps into set p."""
        return self.between(p, p + 1)

    def between(self, first: int, last: int) -> Row:
        """The steps into sets first to last - 1."""
        here = slice(self.ends[first], self.ends[last])
        steps = self.steps
        return Row(steps.start[here], steps.kept[here], steps.time[here], steps.most[here])

    def forward(self) -> Iterator[tuple[int, Row]]:
        """The sets that steps lead into, small ones first."""
        for p in np.flatnonzero(np.diff(self.ends)).tolist():
            yield p, self.into(p)


def arcs_within(dag: Dag, sets: LowerSets, budget: int) -> Arcs | None:
    """The steps that fit in some sequence within `budget`; None where there is no such sequence."""
    # No formula peak reaches four times all bytes; budgets beyond would only leave the range of 64 bits.
    budget = max(-1, min(budget, 4 * TOTAL))
    least = np.full(len(sets), FAR, dtype=np.int64)
    least[0] = 0
    rows: list[Row | None] = [None] * len(sets)
    for p in range(1, len(sets)):
        rows[p] = row = _steps_into(dag, sets, p, least[:p], budget)
        if row is not None:
            least[p] = (least[row.start] + row.kept).min()
    if rows[-1] is None:
        return None
    # From the last set back: with more than `most` bytes kept, no way from p to the end fits.
    most = np.full(len(sets), -1, dtype=np.int64)
    most[-1] = FAR
    for p in range(len(sets) - 1, 0, -1):
        row = rows[p]
        if row is None or least[p] > most[p]:
            rows[p] = None
            continue
        limit = np.minimum(row.most, most[p] - row.kept)
        fits = least[row.start] <= limit
        row = Row(row.start[fits], row.kept[fits], row.time[fits], limit[fits])
        most[row.start] = np.maximum(most[row.start], row.most)
        rows[p] = row
    return _joined(sets, rows)


def _joined(sets: LowerSets, rows: list[Row | None]) -> Arcs:
    ends = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([0 if row is None else len(row.start) for row in rows], out=ends[1:])
    there = [[row.start, row.kept, row.time, row.most] for row in rows if row is not None]
    rows.clear()
    # Millions of steps: each column's parts are let go before the next column is joined.
    start = np.concatenate([row.pop(0) for row in there])
    kept, time, most = (np.concatenate([row.pop(0) for row in there]) for _ in range(3))
    count = sets.member.sum(axis=0)
    cuts = [0, *(np.flatnonzero(np.diff(count)) + 1).tolist(), len(sets)]
    return Arcs(Row(start, kept, time, most), ends, tuple(reversed(list(pairwise(cuts)))))


def _steps_into(dag: Dag, sets: LowerSets, p: int, least: Ints, budget: int) -> Row | None:
    most = budget - sets.ahead[p] - 2 * (sets.bytes[p] - sets.bytes[:p])
    inside = least <= most
    for v in sets.first[p]:
        inside &= ~sets.member[v, :p]
    start = np.flatnonzero(inside).astype(np.int32)
    if not len(start):
        return None
    kept = np.full(len(start), sets.kept[p], dtype=np.int64)
    spared = np.full(len(start), sets.spared[p], dtype=np.int64)
    for v in sets.boundary[p]:
        already = sets.member[v, start]
        kept -= dag.bytes[v] * already
        spared -= dag.ns[v] * already
    return Row(start, kept, sets.ns[p] - sets.ns[start] - spared, most[start])


def least_peak(dag: Dag, family: Family) -> tuple[LowerSets, int]:
    """The family's lower sets and the least budget that one of their sequences fits in.

    At a given budget only the fewest bytes kept matter, one number a set. Every failure names the least budget at which
    it could have gone otherwise, every success the peak it reached; bisection goes on between the two.
    """
    pruned = lower_sets(dag, Family.PRUNED)
    high = least_peak_among(dag, pruned, 2 * int(pruned.bytes[-1]))
    if family is Family.PRUNED:
        return pruned, high
    sets = lower_sets(dag, family)
    return sets, least_peak_among(dag, sets, high)


def least_peak_among(dag: Dag, sets: LowerSets, high: int) -> int:
    """The least budget that a sequence of these sets fits in, `high` being one in which some sequence does."""
    arcs = arcs_within(dag, sets, high)
    assert arcs is not None
    low = 0
    while low < high:
        found, peak = _reach(sets, arcs, (low + high) // 2)
        if found:
            high = peak
        else:
            low = peak
    return high


def _reach(sets: LowerSets, arcs: Arcs, budget: int) -> tuple[bool, int]:
    """Whether a sequence fits, and its peak; or the least budget at which something more could be reached."""
    least = np.full(len(sets), FAR, dtype=np.int64)
    peak = np.zeros(len(sets), dtype=np.int64)
    least[0] = 0
    refused = FAR
    for p, row in arcs.forward():
        needed = least[row.start] + sets.ahead[p] + 2 * (sets.bytes[p] - sets.bytes[row.start])
        fits = needed <= budget
        refused = min(refused, int(np.where(fits, FAR, needed).min()))
        kept = np.where(fits, least[row.start] + row.kept, FAR)
        best = kept.argmin()
        if fits[best]:
            least[p] = kept[best]
            peak[p] = max(peak[row.start[best]], needed[best])
    found = bool(least[-1] < FAR)
    return found, int(peak[-1]) if found else refused
