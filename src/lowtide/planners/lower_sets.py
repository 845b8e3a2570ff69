"""Kusumoto et al.: cut the forward pass at a growing sequence of lower sets, keep what crosses the cuts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from lowtide.errors import BudgetTooSmall
from lowtide.planners import dag_step
from lowtide.planners.dag import Dag
from lowtide.planners.lower_set_family import Family, Ints, LowerSets, lower_sets

FAR = 2**62
Floats = NDArray[np.float64]


class Prefer(Enum):
    """Which strategy within the budget is wanted.

    TIME     the one of least extra time
    MEMORY   the one of most extra time, which leaves least in memory between its blocks
    """

    TIME = "time"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Strategy:
    """An increasing sequence of lower sets L_1 < ... < L_k = all, and what the paper says of it.

    time           extra time T, ns
    peak           of the paper's formula, bytes
    liveness_peak  bytes of the step written out op by op (dag_step)
    sequence       L_1 to L_k; the empty L_0 is left out
    """

    time: int
    peak: int
    liveness_peak: int
    sequence: tuple[frozenset[int], ...]


def solve(dag: Dag, budget: int | None, *, family: Family = Family.EXACT, prefer: Prefer = Prefer.TIME) -> Strategy:
    """Strategy of least (or most) extra time whose formula peak is at most `budget`; without a budget, of least peak.

    Over the sequences of lower sets of `family`. With V_i = L_i - L_(i-1) and U_i the union of boundary(L_j), j <= i,

        T    = ns of all values outside U_k
        peak = max over i of bytes(U_(i-1)) + 2 bytes(V_i) + ahead(L_i)

    A value of V_i that crosses a later cut crosses cut i too, so a step from L to L' adds boundary(L') - L to U, never
    twice, and V - boundary(L') to T. Hence over pairs L < L', with u the bytes of U at L:

        front(L') = least pairs of  (T + ns(L' - L - boundary(L')),  u + bytes(boundary(L') - L))
                    for (T, u) in front(L)  with  u + 2 bytes(L' - L) + ahead(L') <= budget

    Pairs that cannot be completed within the budget, or not better than the best, are left out (`_Arcs`, `_Bound`);
    that changes the work, not the answer. Most extra time is the same with the sign of T turned.

    Optimal in the class. The formula counts each block twice and drops nothing inside a block, so liveness_peak is
    usually lower, and plans outside the class can be better (test_a_strategy_is_not_always_best).
    Time O(P^2 F) for P lower sets and fronts of F pairs. Ref: Kusumoto et al. 2019, arXiv:1905.11722.
    """
    if budget is None:
        sets, budget = _least_peak(dag, family)
    else:
        sets = lower_sets(dag, family)
    arcs = _arcs(dag, sets, budget)
    if arcs is None:
        needed = _least_peak(dag, family)[1]
        message = f"no sequence of lower sets has a peak within {budget} bytes; the least peak is {needed}"
        raise BudgetTooSmall(message, budget=budget, needed=needed)
    path = _best_path(sets, arcs, 1 if prefer is Prefer.TIME else -1)
    return strategy(dag, tuple(sets.members(p) for p in path))


def strategy(dag: Dag, sequence: tuple[frozenset[int], ...]) -> Strategy:
    """What the paper's formulas and the written-out step say of a sequence of lower sets."""
    kept: set[int] = set()
    past: frozenset[int] = frozenset()
    peak = 0
    for now in sequence:
        ahead = {s for v in now for s in dag.after[v]} - now
        beside = {u for s in ahead for u in dag.before[s]} - now
        peak = max(peak, _bytes(dag, kept) + 2 * _bytes(dag, now - past) + _bytes(dag, ahead) + _bytes(dag, beside))
        kept |= {v for v in now if not now.issuperset(dag.after[v])}
        past = now
    time = sum(dag.ns) - sum(dag.ns[v] for v in kept)
    return Strategy(time, peak, dag_step.peak(dag, dag_step.write_out(dag, sequence)), sequence)


def _bytes(dag: Dag, values: set[int] | frozenset[int]) -> int:
    return sum(dag.bytes[v] for v in values)


@dataclass(slots=True)
class _Row:
    """The steps into one lower set: from sets `start`, each adding `kept` bytes and `time`, open to sequences that so
    far keep at most `most` bytes.
    """

    start: NDArray[np.int32]
    kept: Ints
    time: Ints
    most: Ints


@dataclass(frozen=True, slots=True)
class _Arcs:
    """The steps between lower sets that can be part of a sequence within the budget.

    rows    the steps into each set; None where there are none
    least   fewest bytes kept on a way to each set within the budget
    """

    rows: tuple[_Row | None, ...]
    least: Ints

    def backward(self) -> Iterator[tuple[int, _Row]]:
        """The rows from the last set to the first."""
        for p in range(len(self.rows) - 1, 0, -1):
            row = self.rows[p]
            if row is not None:
                yield p, row

    def forward(self) -> Iterator[tuple[int, _Row]]:
        """The rows from the first set to the last."""
        for p, row in enumerate(self.rows):
            if row is not None:
                yield p, row


def _arcs(dag: Dag, sets: LowerSets, budget: int) -> _Arcs | None:
    """All steps that fit in some sequence within `budget`; None where there is no such sequence."""
    least = np.full(len(sets), FAR, dtype=np.int64)
    least[0] = 0
    rows: list[_Row | None] = [None] * len(sets)
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
        row.most = np.minimum(row.most, most[p] - row.kept)
        fits = least[row.start] <= row.most
        if not fits.all():
            rows[p] = row = _Row(row.start[fits], row.kept[fits], row.time[fits], row.most[fits])
        most[row.start] = np.maximum(most[row.start], row.most)
    return _Arcs(tuple(rows), least)


def _steps_into(dag: Dag, sets: LowerSets, p: int, least: Ints, budget: int) -> _Row | None:
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
    return _Row(start, kept, sets.ns[p] - sets.ns[start] - spared, most[start])


def _least_peak(dag: Dag, family: Family) -> tuple[LowerSets, int]:
    """The family's lower sets and the least budget that one of their sequences fits in.

    At a given budget only the fewest bytes kept matter, one number a set. Every failure names the least budget at which
    it could have gone otherwise, every success the peak it reached; bisection goes on between the two.
    """
    pruned = lower_sets(dag, Family.PRUNED)
    high = _bisect_peak(dag, pruned, 2 * int(pruned.bytes[-1]))
    if family is Family.PRUNED:
        return pruned, high
    sets = lower_sets(dag, family)
    return sets, _bisect_peak(dag, sets, high)


def _bisect_peak(dag: Dag, sets: LowerSets, high: int) -> int:
    arcs = _arcs(dag, sets, high)
    assert arcs is not None
    low = 0
    while low < high:
        found, peak = _reach(sets, arcs, (low + high) // 2)
        if found:
            high = peak
        else:
            low = peak
    return high


def _reach(sets: LowerSets, arcs: _Arcs, budget: int) -> tuple[bool, int]:
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


@dataclass(frozen=True, slots=True)
class _Bound:
    """No completion of a sequence that is at set p with time T and u bytes kept ends below T + price * u + rest[p].

    Budget enters through the last step alone, its `most` priced at `price` a byte (Lagrange); at price 0 it does not.
    """

    price: float
    rest: Floats

    @property
    def least(self) -> float:
        """What no sequence ends below."""
        return float(self.rest[0])


def _bound(arcs: _Arcs, sign: int, price: float) -> tuple[_Bound, float]:
    """The bound at a price, and how far the sequence that gives it oversteps the budget at its last step."""
    rest = np.full(len(arcs.rows), np.inf)
    over = np.zeros(len(arcs.rows))
    last = len(arcs.rows) - 1
    for p, row in arcs.backward():
        if p == last:
            excess = -row.most.astype(np.float64)
            total = sign * row.time + price * excess
        else:
            excess = row.kept + over[p]
            total = sign * row.time + price * row.kept + rest[p]
        better = total < rest[row.start]
        rest[row.start[better]] = total[better]
        over[row.start[better]] = excess[better]
    return _Bound(price, rest), float(over[0])


def _bounds(arcs: _Arcs, sign: int) -> tuple[_Bound, _Bound]:
    """The bound at price 0 and the best of the few prices tried: the least is concave in the price, and where the lines
    of an overstepping and of a fitting sequence meet is the next price.
    """
    free, over = _bound(arcs, sign, 0.0)
    if over <= 0:
        return free, free
    # Lines (time at price 0, excess): `steep` oversteps the budget, `flat` does not.
    steep = (free.least, over)
    best, price = free, max(abs(free.least), 1.0) / over
    flat: tuple[float, float] | None = None
    for _ in range(12):
        tried, over = _bound(arcs, sign, price)
        best = max(best, tried, key=lambda bound: bound.least)
        line = (tried.least - price * over, over)
        if over > 0:
            steep = line
        else:
            flat = line
        if flat is None:
            price *= 4
            continue
        met = (flat[0] - steep[0]) / (steep[1] - flat[1])
        if not met > 0 or met == price:
            break
        price = met
    return free, best


def _best_path(sets: LowerSets, arcs: _Arcs, sign: int) -> list[int]:
    """Numbers of the sets of the sequence with the least of sign * T, the empty one left out.

    Labels above `cut` are not followed. When nothing ends within it the cut was below the optimum and is raised.
    """
    bounds = _bounds(arcs, sign)
    total = int(sets.ns[-1])
    slack = 1e-9 * total + 1e-3
    margin = total / 1000
    while True:
        labels = _Labels(len(sets))
        _spread(arcs, sign, bounds, bounds[1].least + margin + slack, slack, labels)
        if labels.count[-1]:
            return labels.path(arcs, sign)
        margin = 2 * margin + 1


class _Labels:
    """Fronts of (sign * T, bytes kept) of all sets, one after another in two growing arrays."""

    def __init__(self, sets: int) -> None:
        self.time = np.zeros(1024, dtype=np.int64)
        self.kept = np.zeros(1024, dtype=np.int64)
        self.start = np.zeros(sets, dtype=np.int64)
        self.count = np.zeros(sets, dtype=np.int64)
        self.fewest = np.full(sets, FAR, dtype=np.int64)
        self.count[0] = 1
        self.fewest[0] = 0
        self.used = 1

    def add(self, p: int, time: Ints, kept: Ints) -> None:
        """Give set p the front of these labels: ever more time, ever fewer bytes."""
        order = np.lexsort((kept, time))
        time, kept = time[order], kept[order]
        on_front = np.ones(len(kept), dtype=bool)
        on_front[1:] = kept[1:] < np.minimum.accumulate(kept)[:-1]
        time, kept = time[on_front], kept[on_front]
        while self.used + len(time) > len(self.time):
            self.time = np.concatenate([self.time, np.zeros_like(self.time)])
            self.kept = np.concatenate([self.kept, np.zeros_like(self.kept)])
        place = slice(self.used, self.used + len(time))
        self.time[place], self.kept[place] = time, kept
        self.start[p], self.count[p], self.fewest[p] = self.used, len(time), kept[-1]
        self.used += len(time)

    def path(self, arcs: _Arcs, sign: int) -> list[int]:
        """The sets on the way to the first label of the last set, found again from the numbers alone."""
        p = len(arcs.rows) - 1
        time, kept = int(self.time[self.start[p]]), int(self.kept[self.start[p]])
        path = []
        while p:
            path.append(p)
            row = arcs.rows[p]
            assert row is not None
            for start, more, longer, most in zip(row.start, row.kept, row.time, row.most):
                front = slice(self.start[start], self.start[start] + self.count[start])
                wanted = (self.time[front] == time - sign * longer) & (self.kept[front] == kept - more)
                if wanted.any() and kept - more <= most:
                    p, time, kept = int(start), int(time - sign * longer), int(kept - more)
                    break
            else:
                raise AssertionError("a label without an origin")
        return path[::-1]


def _spread(
    arcs: _Arcs, sign: int, bounds: tuple[_Bound, _Bound], cut: float, slack: float, labels: _Labels
) -> None:
    """Fill in the fronts of all sets, without what no completion brings to `cut` or below."""
    for p, row in arcs.forward():
        open_ = np.flatnonzero(labels.fewest[row.start] <= row.most)
        if not len(open_):
            continue
        start = row.start[open_]
        counts = labels.count[start]
        steps = np.repeat(open_, counts)
        places = np.arange(len(steps)) + np.repeat(labels.start[start] - (counts.cumsum() - counts), counts)
        kept = labels.kept[places]
        fits = kept <= row.most[steps]
        kept = kept[fits] + row.kept[steps[fits]]
        time = labels.time[places[fits]] + sign * row.time[steps[fits]]
        if p < len(arcs.rows) - 1:
            for bound in bounds:
                hopeful = time + bound.price * kept + bound.rest[p] <= cut + slack
                kept, time = kept[hopeful], time[hopeful]
        else:
            kept, time = kept[time <= cut], time[time <= cut]
        if len(time):
            labels.add(p, time, kept)
