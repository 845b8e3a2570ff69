"""Prices: what memory is worth at every moment of backward, and what no plan can do better than at those prices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linprog

from lowtide.plan import Bound
from lowtide.planners.promise import ONCE
from lowtide.planners.step import Step

Floats = NDArray[np.float64]
PROVEN = "prices of memory, over plans that run each backward op once and in the program's order"
SCALE = 2**32


@dataclass(frozen=True, slots=True)
class Charge:
    """Bytes that a choice puts in memory at the moments begin <= t < end; negative where it takes them away."""

    choice: int
    bytes: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Gap:
    """The moments between two uses of a value, or from the boundary to the first, in which it may be away.

    choice   number of the choice to make it anew in that gap, or None when it must stay
    value    the value
    before   the backward op that used it last; the boundary less one for the first gap
    begin    first moment of the gap
    end      moment of the use after it
    """

    choice: int | None
    value: int
    before: int
    begin: int
    end: int


@dataclass(frozen=True)
class Relaxed:
    """What a Step comes to when ops may be rerun, and values be there, in part: a linear program.

    Moment t is the run of backward op boundary + t. A choice x is a number from 0 to `most`: x[u], for u below the
    boundary, says whether forward op u runs after the first backward op; the others say whether a value that
    backward does not read is there at the first moment, in which gaps a value is made anew, and how often an op runs.

        minimise    cost . x
        subject to  sum of factor * x[choice] over the terms of a row  >=  least of the row
                    fixed[t] + bytes of the charges at t  <=  budget,  for every moment t

    fixed   bytes that are there at t whatever is chosen: gradients, outputs, and what backward op t reads
    gaps    see Gap; all those of values that backward reads
    instants  moments, beside the first, that are seen exactly
    """

    step: Step
    cost: tuple[int, ...]
    most: tuple[int, ...]
    terms: tuple[tuple[int, int, int], ...]
    least: tuple[int, ...]
    charges: tuple[Charge, ...]
    fixed: tuple[int, ...]
    gaps: tuple[Gap, ...]
    instants: tuple[int, ...] = ()

    @classmethod
    def of(cls, step: Step, instants: Iterable[int] = ()) -> Relaxed:
        """The relaxation of a Step.

        At the first moment, and at each of `instants` (the more, the closer and the slower), it is told which reruns
        are still to come and what has to be there for them; between those moments they take no room.
        """
        builder = _Builder(step)
        builder.build()
        seen = sorted(set(instants) - {0})
        for t in seen:
            builder.instant(t)
        return replace(builder.relaxed(), instants=tuple(seen))

    def solve(self, budget: int, margin: Floats | None = None) -> Prices | None:
        """The least cost within the budget, less `margin` bytes at each moment; None where there is none."""
        moments, choices = len(self.fixed), len(self.cost)
        capacity = budget - np.array(self.fixed, dtype=float)
        if margin is not None:
            capacity -= margin
        if not choices or not moments:
            none = np.zeros(len(self.least))
            return None if (capacity < 0).any() else Prices(0.0, np.zeros(choices), np.zeros(moments), none)
        unit, second = max(1.0, budget / 100), max(1.0, float(self.step.program.arrays.ns.sum()) / 1000)
        rows, columns, factors = np.array(self.terms, dtype=float).reshape(-1, 3).T
        needs = sparse.csr_matrix((-factors, (rows, columns)), shape=(len(self.least), choices + moments))
        # memory[t] - memory[t - 1] = charges that begin or end at t
        charge = np.array([(c.choice, c.bytes, c.begin, c.end) for c in self.charges], dtype=float).reshape(-1, 4).T
        changes = sparse.csr_matrix(
            (
                np.concatenate([-charge[1], charge[1]]) / unit,
                (np.concatenate([charge[2], charge[3]]), np.concatenate([charge[0], charge[0]])),
            ),
            shape=(moments + 1, choices),
        )[:moments]
        memory = sparse.hstack([changes, sparse.eye(moments) - sparse.eye(moments, k=-1)]).tocsr()
        limits = np.zeros((choices + moments, 2))
        limits[:choices, 1] = self.most
        limits[choices:, 0] = -np.inf
        limits[choices:, 1] = capacity / unit
        cost = np.concatenate([np.array(self.cost, dtype=float) / second, np.zeros(moments)])
        least = -np.array(self.least, dtype=float)
        found = linprog(cost, needs, least, memory, np.zeros(moments), limits, method="highs-ds")
        if found.x is None:
            return None
        rent = -found.upper.marginals[choices:] * second / unit
        return Prices(found.fun * second, found.x[:choices], rent, -found.ineqlin.marginals * second)

    def proof(self, prices: Prices) -> Proof:
        """What these prices prove, in whole numbers.

        For prices p >= 0 of memory and q >= 0 of the rows, and any x that satisfies both,

            cost . x  >=  cost . x + sum over t of p_t (memory_t - budget) + sum over rows of q (least - row)

        and the right-hand side is least where each x is 0 or `most`, by the sign of its factor. Prices are rounded to
        whole 2**-32 ns first; any prices prove something, and so the solver's precision is not taken on trust.
        """
        rent = [max(0, round(p * SCALE)) for p in prices.rent.tolist()]
        worth = [max(0, round(q * SCALE)) for q in prices.worth.tolist()]
        until = [0]
        for p in rent:
            until.append(until[-1] + p)
        factor = [c * SCALE for c in self.cost]
        for row, choice, times in self.terms:
            factor[choice] -= worth[row] * times
        for charge in self.charges:
            factor[charge.choice] += charge.bytes * (until[charge.end] - until[charge.begin])
        total = sum(q * least for q, least in zip(worth, self.least))
        total += sum(p * fixed for p, fixed in zip(rent, self.fixed))
        total += sum(most * min(0, f) for most, f in zip(self.most, factor))
        return Proof(total, sum(rent), int(self.step.program.arrays.ns.sum()))


@dataclass(frozen=True, slots=True)
class Proof:
    """What prices prove of a step, at any budget: they hold at all, and say most at the one they were found for.

    worth   what no choice can avoid where memory is for nothing, in units of 2**-32 ns
    rent    what each byte of budget takes off that, in the same units
    plain   nanoseconds of every op once
    """

    worth: int
    rent: int
    plain: int

    def extra(self, budget: int) -> int:
        """Nanoseconds beyond the plain step that no plan of the class within `budget` bytes can avoid."""
        return max(0, -(-(self.worth - self.rent * budget) // SCALE))

    def at(self, budget: int) -> Bound:
        """The proven least time of the whole step."""
        extra = self.extra(budget)
        return Bound(self.plain + extra, PROVEN if extra else ONCE)


@dataclass(frozen=True, slots=True)
class Prices:
    """The solution of a Relaxed and its prices.

    extra   the least cost
    x       the choices
    rent    per moment, nanoseconds a byte there costs
    worth   per row, nanoseconds that one less would save
    """

    extra: float
    x: Floats
    rent: Floats
    worth: Floats


class _Builder:
    """Writes a Relaxed down."""

    def __init__(self, step: Step) -> None:
        self.step = step
        arrays = step.program.arrays
        self.size: list[int] = arrays.bytes.tolist()
        self.ns: list[int] = arrays.ns.tolist()
        self.moments = len(step.reads) - step.boundary
        self.certain = step.certain
        self.uses = [[b - step.boundary for b in uses] for uses in step.uses]
        self.cost = [0] * step.boundary
        self.most = [int(op.rerunnable) for op in step.program.ops[: step.boundary]]
        self.terms: list[tuple[int, int, int]] = []
        self.least: list[int] = []
        self.charges: list[Charge] = []
        self.gaps: list[Gap] = []
        self.change = [0] * (self.moments + 1)

    def build(self) -> None:
        """The choices, the rows, and what is in memory; of the moments, the first is seen exactly."""
        self._backward_values()
        kept = self._kept_for_reruns()
        for op in range(self.step.boundary):
            self._op(op, kept)

    def instant(self, t: int) -> None:
        """See moment t exactly too: a choice per op, to run after it, and what must be there for that."""
        step = self.step
        later = self._wanted_after(t)
        after = {op: self._choice() for op in range(step.boundary) if later[op]}
        for op, choice in after.items():
            self._row(0, (op, 1), (choice, -1))
        there: dict[int, int] = {}
        for op, choice in after.items():
            for v in step.reads[op]:
                if self._is_held(v) or any(use >= t for use in self.uses[v]):
                    continue
                if v not in there:
                    there[v] = self._choice()
                    self._charge(there[v], v, 1, t, t + 1)
                again = [(after[step.writer[v]], 1)] if step.writer[v] in after else []
                self._row(0, (choice, -1), (there[v], 1), *again)
        for gap in self.gaps:
            if gap.choice is None:
                continue
            run_after = after.get(step.writer[gap.value])
            if gap.begin <= t < gap.end:
                # Made anew in this gap, but not after t: then before t, and there by now.
                made = self._choice()
                self._row(0, (made, 1), (gap.choice, -1), *([(run_after, 1)] if run_after is not None else []))
                self._charge(made, gap.value, 1, t, t + 1)
            elif t < gap.begin and run_after is not None and gap.choice != step.writer[gap.value]:
                self._row(0, (run_after, 1), (gap.choice, -1))

    def _wanted_after(self, t: int) -> list[bool]:
        """Per forward op, whether it may be run again after moment t for some use after it."""
        wanted = [False] * self.step.boundary
        read: set[int] = set()
        for op in range(self.step.boundary - 1, -1, -1):
            if self.most[op] and any(
                v in read or any(use > t for use in self.uses[v]) for v in self.step.writes[op] if not self._is_held(v)
            ):
                wanted[op] = True
                read.update(self.step.reads[op])
        return wanted

    def relaxed(self) -> Relaxed:
        """What has been built."""
        fixed = np.array(self.change, dtype=np.int64).cumsum()[: self.moments]
        fixed += self.step.program.arrays.scratch[self.step.boundary :]
        return Relaxed(
            step=self.step,
            cost=tuple(self.cost),
            most=tuple(self.most),
            terms=tuple(self.terms),
            least=tuple(self.least),
            charges=tuple(self.charges),
            fixed=tuple(fixed.tolist()),
            gaps=tuple(self.gaps),
        )

    def _choice(self, cost: int = 0, most: int = 1) -> int:
        self.cost.append(cost)
        self.most.append(most)
        return len(self.cost) - 1

    def _row(self, least: int, *terms: tuple[int, int]) -> None:
        self.terms += [(len(self.least), choice, factor) for choice, factor in terms]
        self.least.append(least)

    def _always(self, value: int, begin: int, end: int) -> None:
        self.change[begin] += self.size[value]
        self.change[end] -= self.size[value]

    def _charge(self, choice: int, value: int, sign: int, begin: int, end: int) -> None:
        if self.size[value] and begin < end <= self.moments:
            self.charges.append(Charge(choice, sign * self.size[value], begin, end))

    def _backward_values(self) -> None:
        """Values that backward makes live from their write to their last read; outputs to the end."""
        step, boundary = self.step, self.step.boundary
        last: dict[int, int] = {}
        for t, reads in enumerate(step.reads[boundary:]):
            last.update((v, t) for v in reads if not step.forward[v])
        outputs = step.program.arrays.output.tolist()
        for t, writes in enumerate(step.writes[boundary:]):
            for v in writes:
                self._always(v, t, self.moments if outputs[v] else last.get(v, t) + 1)

    def _kept_for_reruns(self) -> dict[int, int]:
        """A choice for every value that only reruns may need: to be there at the first moment."""
        kept: dict[int, int] = {}
        for op in range(self.step.boundary):
            if self.most[op]:
                for v in self.step.reads[op]:
                    if not self.uses[v] and not self._is_held(v) and v not in kept:
                        kept[v] = self._choice()
                        self._charge(kept[v], v, 1, 0, 1)
        return kept

    def _is_held(self, value: int) -> bool:
        return self.step.held[value] and self.certain[self.step.writer[value]]

    def _op(self, op: int, kept: dict[int, int]) -> None:
        step = self.step
        for v in step.reads[op] if self.most[op] else ():
            if v in kept:
                again = [(step.writer[v], 1)] if self.most[step.writer[v]] else []
                self._row(0, (op, -1), (kept[v], 1), *again)
        used = []
        for v in step.writes[op]:
            if self._is_held(v):
                self._always(v, 0, self.moments)
            elif self.uses[v]:
                used.append(v)
        main = max(used, key=lambda v: self.size[v], default=None)
        runs: list[int] = []
        opening: list[int] = []
        for v in used:
            opening.append(len(self.gaps))
            runs += self._value(op, v, is_main=v == main)
        if not self.most[op]:
            return
        if runs:
            # Every gap takes a run of its own.
            times = self._choice(0, len(runs))
            self._row(0, (times, 1), (op, -1))
            self._row(0, (times, 1), *((run, -1) for run in runs))
            self.cost[times] = self.ns[op]
        else:
            times = op
            self.cost[op] = self.ns[op]
        if not self.certain[op] and self.ns[op]:
            # It may not have run before backward, and then its first run is not an extra one.
            self.cost.append(-self.ns[op])
            self.most.append(1)
            first = len(self.cost) - 1
            self._row(0, (times, 1), (first, -1))
            for gap in opening:
                # What is there at the first moment has been made before it.
                self._row(0, (self.gaps[gap].choice or op, 1), (first, -1))

    def _value(self, op: int, value: int, *, is_main: bool) -> list[int]:
        """The gaps of one value that backward reads; returns the choices to make it anew in one of several."""
        uses = self.uses[value]
        for t in uses:
            self._always(value, t, t + 1)
        begins = [0, *(t + 1 for t in uses[:-1])]
        befores = [self.step.boundary - 1, *(self.step.boundary + t for t in uses[:-1])]
        own = is_main and len(uses) > 1 and bool(self.most[op])
        runs = []
        for before, begin, end in zip(befores, begins, uses):
            if not self.most[op]:
                self.gaps.append(Gap(None, value, before, begin, end))
                self._always(value, begin, end)
                continue
            choice = op
            if own and (begin < end or before < self.step.boundary):
                choice = self._choice()
                self._row(0, (op, 1), (choice, -1))
                runs.append(choice)
            self.gaps.append(Gap(choice, value, before, begin, end))
            self._always(value, begin, end)
            self._charge(choice, value, -1, begin, end)
        return runs
