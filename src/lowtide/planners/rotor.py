"""The fastest persistent plan for a chain within a budget: the dynamic program of rotor."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide.errors import BudgetTooSmall
from lowtide.planners.chain import Chain
from lowtide.planners.chain_replay import ChainPlan, replay

WORK = 10**9  # additions that an exact answer may cost before the grid is thinned; a few seconds
CELLS = 64 * 10**6  # entries of all tables together; half a gigabyte
SLOTS = 500  # the grid's size after that
MOST_CELLS = 4 * CELLS  # more than this is never used unasked: beyond 700 stages the grid is thinned further
Vector = NDArray[Any]


def solve(chain: Chain, budget: int | None, *, slots: int | None = None) -> ChainPlan:
    """Fastest persistent plan whose peak, a^0 included, is at most `budget` bytes (None: no limit).

    Persistent: what is stored, a value a^l or all that stage l records, ā^l, stays until its backward use.
    C(s, t, m) is the least time for stages s..t, the loss being stage L+1, with the gradient δ^t and a^(s-1) held,
    a^(s-1) not counted in m, m bytes free; f and b are times, o the scratch of a run:

        C(s, s, m) = f_s + b_s                                                         if m >= all(s, s)
        C(s, t, m) = min( min over s < k <= t with |a^(k-1)| <= m of
                              f_s + ... + f_(k-1) + C(k, t, m - |a^(k-1)|) + C(s, k-1, m)   if m >= none(s, t)
                          f_s + C(s+1, t, m - |ā^s|) + b_s                             if m >= all(s, t) )
        all(s, t)  = max(|δ^t| + |ā^s| + of_s,   |δ^s| + |δ^(s-1)| + |ā^s| + ob_s)
        none(s, t) = max(|δ^t| + |a^s| + of_s,   max over s < j < t of |δ^t| + |a^(j-1)| + |a^j| + of_j)

    The answer is C(1, L+1, budget - |a^0|). m is looked up in a grid of amounts; a lookup that falls between two takes
    the lower, so a plan always fits. The grid holds every amount that can be reached if there are at most `slots` of
    them, and then the plan is optimal in its class; otherwise it is `slots` even steps, and the plan may be slower.
    Without `slots`, as many amounts are allowed as a few seconds and half a gigabyte allow, or SLOTS.
    A plan outside the class may be faster (test_persistence_is_not_always_best). And where |ā^s| < |a^s|, against the
    meaning of ā^s, none(s, t) asks for more than the runs do, and the recurrence's best may not be the class's.
    Whether any plan fits, and `needed` of BudgetTooSmall, are exact for the recurrence at any number of slots.
    Time O(L^3 M), memory O(L^2 M), with M the size of the grid.
    Ref: Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova 2019, arXiv 1911.13214.
    """
    stages = _Stages.of(chain)
    needed = int(stages.least[1, -1]) + chain.value_bytes[0]
    if budget is not None and budget < needed:
        tightest = replay(chain, _runs(stages, needed - chain.value_bytes[0], None))
        raise BudgetTooSmall(
            f"no persistent plan fits in {budget} bytes: this chain of {chain.stages} stages needs at least {needed}. "
            f"The narrowest place is {tightest.at}. Raise the budget to {needed}, or make that stage smaller.",
            budget=budget,
            needed=needed,
        )
    enough = int(stages.enough[1])
    free = enough if budget is None else min(budget - chain.value_bytes[0], enough)
    grid, complete = _grid(stages, free, slots)
    runs = _runs(stages, free, _Table.fill(stages, grid))
    seen = replay(chain, runs)
    return ChainPlan(seen.time, seen.peak, tuple(runs), complete)


def plans(chain: Chain, *, slots: int, most: int) -> list[ChainPlan]:
    """Plans of `solve` for at most `most` budgets, from the least that works to what stores everything, each once.

    All from one table, whose grid has `slots` even steps. Budgets are halved where the plans on either side differ,
    widest stretch first.
    """
    stages = _Stages.of(chain)
    least, enough = int(stages.least[1, -1]), int(stages.enough[1])
    table = _Table.fill(stages, _even(stages, enough, slots))
    found = {free: _runs(stages, free, table) for free in {least, enough}}
    stretches = [(least - enough, least, enough)]
    while stretches and len(found) < most:
        _, low, high = heappop(stretches)
        if high - low < 2 or found[low] == found[high]:
            continue
        middle = (low + high) // 2
        found[middle] = _runs(stages, middle, table)
        for a, b in ((low, middle), (middle, high)):
            heappush(stretches, (a - b, a, b))
    distinct = dict.fromkeys(tuple(runs) for _, runs in sorted(found.items()))
    seen = ((replay(chain, runs), runs) for runs in distinct)
    return [ChainPlan(one.time, one.peak, runs, False) for one, runs in seen]


@dataclass(frozen=True, slots=True)
class _Stages:
    """The chain with its loss as stage T = L + 1, and what depends on no amount of free memory. Stages count from 1.

    forward, backward   times
    upto[l]             time of the forward runs of stages 1..l
    value, saved        bytes
    all, none           the thresholds above, as matrices over (s, t)
    least               least m for which C(s, t, m) is finite
    enough              by s: the least m with which stages s..t can all be run once, whatever t is
    """

    forward: list[int]
    backward: list[int]
    upto: list[int]
    value: list[int]
    saved: list[int]
    all: Vector
    none: Vector
    least: Vector
    enough: Vector

    @classmethod
    def of(cls, chain: Chain) -> _Stages:
        T = chain.stages + 1
        total = sum(chain.value_bytes) + sum(chain.saved_bytes) + sum(chain.grad_bytes) + chain.loss_scratch
        total += sum(chain.forward_scratch) + sum(chain.backward_scratch)
        exact = np.int64 if 4 * total < 2**63 else np.object_
        a, grad = _vector(chain.value_bytes, exact), _vector((*chain.grad_bytes, 0), exact)
        saved = _vector((0, *chain.saved_bytes, 0), exact)
        of = _vector((0, *chain.forward_scratch, 0), exact)
        ob = _vector((0, *chain.backward_scratch, chain.loss_scratch), exact)
        turn = np.zeros(T + 1, dtype=exact)
        turn[1:] = grad[1:] + grad[:-1] + saved[1:] + ob[1:]
        every = np.zeros((T + 1, T + 1), dtype=exact)
        none = np.zeros((T + 1, T + 1), dtype=exact)
        for s in range(1, T + 1):
            every[s, s:] = np.maximum(grad[s:] + saved[s] + of[s], turn[s])
            if s < T:
                sweep = np.concatenate([a[s : s + 1], a[s:-1] + a[s + 1 :]]) + of[s:T]
                none[s, s + 1 :] = np.maximum.accumulate(sweep) + grad[s + 1 :]
        least, enough = every.copy(), every.copy()
        for s in range(T - 1, 0, -1):
            enough[s, s + 1 :] = np.maximum(every[s, s + 1 :], enough[s + 1, s + 1 :] + saved[s])
            record = np.maximum(every[s, s + 1 :], least[s + 1, s + 1 :] + saved[s])
            held = least[s + 1 :, s + 1 :] + a[s:, None]  # by k and t
            for t in range(s + 1, T + 1):
                keep = np.maximum(held[: t - s, t - s - 1], least[s, s:t]).min()
                least[s, t] = min(record[t - s - 1], max(none[s, t], keep))
        forward, backward = [0, *chain.forward_ns, 0], [0, *chain.backward_ns, 0]
        upto = list(accumulate(forward))
        value = list(chain.value_bytes)
        return cls(forward, backward, upto, value, saved.tolist(), every, none, least, enough.max(axis=1))

    @property
    def last(self) -> int:
        """T, the number of the loss."""
        return len(self.forward) - 1


def _vector(numbers: tuple[int, ...], exact: Any) -> Vector:
    return np.array(numbers, dtype=exact)


def _grid(stages: _Stages, free: int, slots: int | None) -> tuple[Vector, bool]:
    """Amounts of free memory to tell apart, rising, and whether they are all that can be reached from `free`.

    Stage k is reached with m - |a^(k-1)| from any stage before it, or with m - |ā^(k-1)| from the one before it.
    Amounts too small for every (k, t) are left out, and those with which everything can be stored count as one.
    """
    T = stages.last
    quick = min(6 * WORK // T**3, CELLS // T**2, 100_000)
    most = slots if slots is not None else max(quick, min(SLOTS, MOST_CELLS // T**2), 2)
    exact = stages.least.dtype
    here = before = np.array([free], dtype=exact)
    complete = True
    for k in range(2, T + 1):
        reached = np.concatenate([before - stages.value[k - 1], here - stages.saved[k - 1]])
        here = np.unique(np.minimum(reached[reached >= stages.least[k, k:].min()], stages.enough[k]))
        before = np.union1d(before, here)
        if len(before) > most:
            complete = False
            break
    if complete:
        return before, True
    return _even(stages, free, most), False


def _even(stages: _Stages, free: int, slots: int) -> Vector:
    """Amounts in even steps, from the least that is of use up to `free`."""
    lowest = min(int(stages.least[s, s:].min()) for s in range(1, stages.last + 1))
    steps = max(slots - 1, 1)
    even = sorted({free - (free - lowest) * i // steps for i in range(slots)})
    return np.array(even, dtype=stages.least.dtype)


@dataclass(frozen=True, slots=True)
class _Table:
    """C on a grid of amounts.

    grid    amounts of free memory, rising
    rows    rows[s][t - s] is C(s, t, m) for every m of the grid, and then `never` once more, so that place -1, where
            an amount below the grid is looked up, is infeasible
    never   stands for infinity
    """

    grid: Vector
    rows: list[Vector]
    never: int

    @classmethod
    def fill(cls, stages: _Stages, grid: Vector) -> _Table:
        T, M = stages.last, len(grid)
        never = (T + 1) * stages.upto[T] + sum(stages.backward) + 1  # above the time of any plan
        exact = np.int64 if 8 * never < 2**63 else np.object_
        after_value = [grid.searchsorted(grid - size, side="right") - 1 for size in stages.value]
        after_saved = [grid.searchsorted(grid - size, side="right") - 1 for size in stages.saved]
        from_least, from_none, from_all = (_places(grid, bound) for bound in (stages.least, stages.none, stages.all))
        rows: list[Vector] = [np.empty((0, 0))] * (T + 1)
        # kept[t][k] is C(k, t, m - |a^(k-1)|) plus the forward time of stages 1..k-1, so that one addition and one
        # minimum over consecutive k serve a whole (s, t).
        kept = [np.empty((t + 1, M), dtype=exact) for t in range(T + 1)]
        scratch = np.empty((T, M), dtype=exact)
        for s in range(T, 0, -1):
            row = np.full((T - s + 1, M + 1), never, dtype=exact)
            rows[s] = row
            once = stages.forward[s] + stages.backward[s]
            row[0, from_all[s][s] : M] = once
            for t in range(s + 1, T + 1):
                best = row[t - s]
                low = max(from_least[s][t], from_none[s][t])
                if low < M:
                    sums = scratch[: t - s, low:]
                    np.add(kept[t][s + 1 :, low:], row[: t - s, low:M], out=sums)
                    best[low:M] = sums.min(axis=0) - stages.upto[s - 1]
                low = max(from_least[s][t], from_all[s][t])
                if low < M:
                    stored = rows[s + 1][t - s - 1][after_saved[s][low:]] + once
                    np.minimum(best[low:M], stored, out=best[low:M])
                np.minimum(best, never, out=best)
            for t in range(s, T + 1):
                kept[t][s] = row[t - s][after_value[s - 1]] + stages.upto[s - 1]
        return cls(grid, rows, never)

    def time(self, s: int, t: int, free: int) -> int:
        """C(s, t, free), or a little more where the grid is thinned."""
        place = int(self.grid.searchsorted(free, side="right")) - 1
        return int(self.rows[s][t - s, place])


def _places(grid: Vector, bounds: Vector) -> list[list[int]]:
    """Where in the grid each bound is first met."""
    return [grid.searchsorted(row).tolist() for row in bounds]


def _runs(stages: _Stages, free: int, table: _Table | None) -> list[str]:
    """The runs of a best plan with `free` bytes; without a table, or where its grid is too coarse, of some plan.

    Followed with the true amounts of free memory, not with the grid's, so what rounding lost is found again.
    """
    T = stages.last
    runs: list[str] = []
    todo: list[str | tuple[int, int, int]] = [(1, T, free)]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            runs.append(item)
            continue
        s, t, m = item
        if s == t == T:
            runs.append("loss")
            continue
        if s == t:
            runs += [f"F_all {s}", f"B {s}"]
            continue
        k = _choice(stages, s, t, m, table)
        if k == s:
            runs.append(f"F_all {s}")
            todo += [f"B {s}", (s + 1, t, m - stages.saved[s])]
        else:
            runs.append(f"F_ck {s}")
            runs += [f"F_none {l}" for l in range(s + 1, k)]
            todo += [(s, k - 1, m), (k, t, m - stages.value[k - 1])]
    return runs


def _choice(stages: _Stages, s: int, t: int, m: int, table: _Table | None) -> int:
    """The k of a best way to do stages s..t in m bytes, or s where stage s is to be recorded."""
    value, saved, least = stages.value, stages.saved, stages.least
    options = []
    if m >= stages.all[s, t] and m - saved[s] >= least[s + 1, t]:
        options.append(s)
    if m >= stages.none[s, t]:
        options += [k for k in range(s + 1, t + 1) if m - value[k - 1] >= least[k, t] and m >= least[s, k - 1]]
    if table is None:
        return options[0]

    def time(k: int) -> int:
        if k == s:
            return stages.forward[s] + stages.backward[s] + table.time(s + 1, t, m - saved[s])
        swept = stages.upto[k - 1] - stages.upto[s - 1]
        return swept + table.time(k, t, m - value[k - 1]) + table.time(s, k - 1, m)

    return min(options, key=time)
