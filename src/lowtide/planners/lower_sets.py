"""Kusumoto et al.: cut the forward pass at a growing sequence of lower sets, keep what crosses the cuts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from lowtide.errors import BudgetTooSmall
from lowtide.planners import dag_step
from lowtide.planners.dag import Dag
from lowtide.planners.lower_set_arcs import FAR, Arcs, Row, arcs_within, least_peak, least_peak_among
from lowtide.planners.lower_set_bound import Bound, bounds
from lowtide.planners.lower_set_family import Family, Ints, LowerSets, lower_sets, some_lower_sets


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

    Pairs that cannot be completed within the budget, or not better than the best, are left out (`Arcs`, `Bound`);
    that changes the work, not the answer. Most extra time is the same with the sign of T turned.

    Optimal in the class. The formula counts each block twice and drops nothing inside a block, so liveness_peak is
    usually lower, and plans outside the class can be better (test_a_strategy_is_not_always_best).
    Time O(P^2 F) for P lower sets and fronts of F pairs. Ref: Kusumoto et al. 2019, arXiv:1905.11722.
    """
    if budget is None:
        sets, budget = least_peak(dag, family)
    else:
        sets = lower_sets(dag, family)
    arcs = arcs_within(dag, sets, budget)
    if arcs is None:
        needed = least_peak(dag, family)[1]
        message = f"no sequence of lower sets has a peak within {budget} bytes; the least peak is {needed}"
        raise BudgetTooSmall(message, budget=budget, needed=needed)
    path = _best_path(sets, arcs, 1 if prefer is Prefer.TIME else -1)
    return strategy(dag, tuple(sets.members(p) for p in path))


@dataclass(frozen=True, slots=True)
class Cuts:
    """A sequence of lower sets L_1 < ... < L_k = all, and the paper's formulas for it.

    time      extra time T, ns
    peak      bytes
    kept      the values that cross a cut, U_k
    last      the values of the last block, V_k
    """

    time: int
    peak: int
    kept: frozenset[int]
    last: frozenset[int]


def plans(dag: Dag, *, sets: int, budgets: int) -> list[Cuts]:
    """Strategies over a range of budgets, of at most `sets` lower sets (`some_lower_sets`).

    Budgets go in even
    ratios from the least peak to what all values and the largest step take; each is asked for the strategy of least
    and of most extra time.
    """
    family = some_lower_sets(dag, sets)
    total = int(family.bytes[-1])
    least = least_peak_among(dag, family, 2 * total)
    most = max(least, total + 2 * int(np.diff(family.bytes).max(initial=0)) + int(family.ahead.max(initial=0)))
    paths: set[tuple[int, ...]] = set()
    for i in range(budgets):
        budget = round(least * (most / max(1, least)) ** (i / max(1, budgets - 1)))
        arcs = arcs_within(dag, family, max(budget, least))
        assert arcs is not None, "the least peak is within every budget asked for"
        paths |= {tuple(_best_path(family, arcs, sign)) for sign in (1, -1)}
    return [_cuts(dag, family, path) for path in sorted(paths)]


def _cuts(dag: Dag, sets: LowerSets, path: tuple[int, ...]) -> Cuts:
    """The formulas, from the numbers of the sets of a sequence."""
    sizes, times = np.array(dag.bytes, dtype=np.int64), np.array(dag.ns, dtype=np.int64)
    kept, inside = np.zeros((2, len(dag)), dtype=bool)
    peak = before = held = 0
    last = inside
    for p in path:
        peak = max(peak, held + 2 * int(sets.bytes[p] - before) + int(sets.ahead[p]))
        kept[sets.boundary[p]] = True
        held, before = int(sizes[kept].sum()), int(sets.bytes[p])
        last, inside = sets.member[:, p] & ~inside, sets.member[:, p]
    where = (frozenset(np.flatnonzero(chosen).tolist()) for chosen in (kept, last))
    return Cuts(int(times[~kept].sum()), peak, *where)


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


def _best_path(sets: LowerSets, arcs: Arcs, sign: int) -> list[int]:
    """Numbers of the sets of the sequence with the least of sign * T, the empty one left out.

    Labels that no completion brings to `cut` or below are not followed. When nothing arrives, the cut was below the
    optimum and is raised.
    """
    known = bounds(sets, arcs, sign)
    slack = 1e-9 * int(sets.ns[-1]) + 1e-3
    margin = (known.reached - known.best.least) / 4 + 1
    while True:
        cut = min(known.best.least + margin, known.reached)
        labels = _Labels(arcs, sign)
        labels.spread((known.free, known.best), cut + slack)
        if labels.count[-1]:
            return labels.path()
        assert cut < known.reached
        margin *= 2


class _Labels:
    """Fronts of (sign * T, bytes kept) of all sets, one after another in two growing arrays."""

    def __init__(self, arcs: Arcs, sign: int) -> None:
        self.arcs = arcs
        self.sign = sign
        sets = len(arcs.ends) - 1
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

    def spread(self, bounds: tuple[Bound, ...], cut: float) -> None:
        """Fill in the fronts of all sets, without what no completion brings to `cut` or below."""
        for p, row in self.arcs.forward():
            steps, places = self.before(row)
            if not len(steps):
                continue
            kept = self.kept[places]
            fits = kept <= row.most[steps]
            steps, places = steps[fits], places[fits]
            kept = kept[fits] + row.kept[steps]
            time = self.time[places] + self.sign * row.time[steps]
            if p < len(self.arcs.ends) - 2:
                for bound in bounds:
                    hopeful = time + bound.price[p] * kept + bound.rest[p] <= cut
                    kept, time = kept[hopeful], time[hopeful]
            else:
                kept, time = kept[time <= cut], time[time <= cut]
            if len(time):
                self.add(p, time, kept)

    def before(self, row: Row) -> tuple[NDArray[np.intp], Ints]:
        """Every label that a step of the row may start from: which step, and where the label is."""
        steps = np.flatnonzero(self.fewest[row.start] <= row.most)
        start = row.start[steps]
        counts = self.count[start]
        places: Ints = np.repeat(self.start[start] - (counts.cumsum() - counts), counts)
        places += np.arange(len(places), dtype=np.int64)
        return np.repeat(steps, counts), places

    def path(self) -> list[int]:
        """The sets on the way to the first label of the last set, found again from the numbers alone."""
        p = len(self.arcs.ends) - 2
        time, kept = int(self.time[self.start[p]]), int(self.kept[self.start[p]])
        path = []
        while p:
            path.append(p)
            row = self.arcs.into(p)
            steps, places = self.before(row)
            before = (self.time[places], self.kept[places])
            same = (before[0] + self.sign * row.time[steps] == time) & (before[1] + row.kept[steps] == kept)
            first = int(np.argmax(same & (before[1] <= row.most[steps])))
            assert same[first]
            p, time, kept = int(row.start[steps[first]]), int(before[0][first]), int(before[1][first])
        return path[::-1]
