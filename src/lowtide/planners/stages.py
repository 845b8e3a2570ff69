"""Stages: the step as an integer program, with a stage for each op that has its place in the order of the step."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, gcd, inf

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from lowtide.planners.step import Step
from lowtide.program import Role

# What a sum may hold besides unknowns, which are numbers from 0.
NEVER, ALWAYS = -1, -2
LARGEST = 10_000.0  # coefficients of the objective are scaled to at most this: the solver's tolerances are absolute
OPTIMAL, INFEASIBLE, FAILED = 0, 2, 4  # what scipy calls them
Sum = dict[int, float]


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage.

    target      the op that ends it
    candidates  the forward ops that may run before it, in order
    fixed       bytes that are there all through the stage at no choice: outputs and gradients
    """

    target: int
    candidates: tuple[int, ...]
    fixed: int


@dataclass(frozen=True, slots=True)
class Found:
    """What the solver found by when it had to stop.

    runs    a sequence; None where it found none
    ended   whether it searched everything: then `runs` is the best, or there is none
    least   what it proved that no sequence is below, ns of reruns or bytes; -inf where it proved nothing
    """

    runs: tuple[int, ...] | None
    ended: bool
    least: float


class Stages:
    """The integer program of one step; `exact_program` has it in formulas.

    Unknowns are numbered. L stands only where it can change: at the op of the value and at its readers. What is certain
    has no unknown.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self.bytes: list[int] = step.program.arrays.bytes.tolist()
        self.stages = stages(step)
        self.integral: list[int] = []
        self.rows: list[tuple[Sum, float]] = []  # each sum is at least its number
        self.places: list[tuple[Sum, int]] = []  # bytes at each place: unknown ones and certain ones
        self.run = [{op: self._unknown(1) for op in stage.candidates} for stage in self.stages]
        self.held = self._held()
        for t in range(len(self.stages)):
            self._stage(t)
        self._first_runs()

    def fastest(self, budget: int, below: int, seconds: float) -> Found:
        """The sequence of least time of reruns whose peak is at most `budget`, if that time is below `below`."""
        ns = self.step.program.arrays.ns.tolist()
        cost: Sum = {x: ns[op] for run in self.run for op, x in run.items()}
        # Ops whose first run is in no place of its own: one run of each is no rerun.
        free = sum(ns[op] for op in range(self.step.boundary) if not self.step.essential[op])
        unit = gcd(*map(int, cost.values())) or 1
        rows = [*self.rows, ({x: -c / unit for x, c in cost.items()}, 0.5 - ceil((below + free) / unit))]
        found = self._solve(cost, [*rows, *self._within(budget)], seconds)
        return Found(found.runs, found.ended, found.least - free)

    def lowest(self, below: int, seconds: float) -> Found:
        """The sequence of least peak, if that is below `below`."""
        peak = self._unknown(0)
        unit = gcd(self._unit(), *(known for _, known in self.places)) or 1
        rows = [({peak: 1.0, **{x: -c / unit for x, c in sum_.items()}}, known / unit) for sum_, known in self.places]
        rows.append(({peak: -1.0}, 0.5 - ceil(below / unit)))
        found = self._solve({peak: float(unit)}, [*self.rows, *rows], seconds)
        self.integral.pop()
        return found

    def _within(self, budget: int) -> list[tuple[Sum, float]]:
        """Rows that keep every place within the budget. Bytes come in units, so half a unit more changes nothing."""
        unit = self._unit() or 1
        return [
            ({x: -c / unit for x, c in sum_.items()}, -((budget - known) // unit) - 0.5)
            for sum_, known in self.places
            if sum(sum_.values()) + known > budget
        ]

    def _unit(self) -> int:
        """What all unknown bytes are multiples of; 0 where there are none."""
        return gcd(*(int(c) for sum_, _ in self.places for c in sum_.values()))

    def _solve(self, cost: Sum, rows: list[tuple[Sum, float]], seconds: float) -> Found:
        size = len(self.integral)
        if not size:  # Nothing to choose: sums of nothing are 0.
            fits = all(least <= 0 for _, least in rows)
            return Found(self._sequence(np.zeros(0, dtype=bool)) if fits else None, True, 0.0)
        objective = np.zeros(size)
        objective[list(cost)] = list(cost.values())
        scale = LARGEST / max(LARGEST, float(objective.max(initial=0)))
        upper = np.where(np.array(self.integral, dtype=bool), 1.0, np.inf)
        for presolve in (True, False):
            answer = milp(
                objective * scale,
                integrality=np.array(self.integral),
                bounds=Bounds(0, upper),
                constraints=_constraint(rows, size),
                options={"time_limit": max(seconds, 0.0), "mip_rel_gap": 0.0, "presolve": presolve},
            )
            if answer.status != FAILED:
                break  # Of some small programs what presolve makes cannot be solved; the program as it stands can.
        runs = None if answer.x is None else self._sequence(answer.x > 0.5)
        proven = answer.mip_dual_bound
        return Found(runs, answer.status in (OPTIMAL, INFEASIBLE), -inf if proven is None else proven / scale)

    def _sequence(self, chosen: NDArray[np.bool_]) -> tuple[int, ...]:
        runs: list[int] = []
        for stage, run in zip(self.stages, self.run):
            runs += [op for op in stage.candidates if chosen[run[op]]]
            runs.append(stage.target)
        return tuple(runs)

    def _unknown(self, integral: int) -> int:
        self.integral.append(integral)
        return len(self.integral) - 1

    def _held(self) -> list[dict[int, int]]:
        """S of every stage, for the values that may be there and that somebody may read from then on."""
        ops = [(*stage.candidates, stage.target) for stage in self.stages]
        wanted: list[set[int]] = [set() for _ in ops]
        for t in range(len(ops) - 1, -1, -1):
            wanted[t].update(v for op in ops[t] for v in self.step.reads[op])
            if t:
                wanted[t - 1] |= wanted[t]
        held: list[dict[int, int]] = []
        made: set[int] = set()
        for t in range(len(ops)):
            held.append({v: self._unknown(1) for v in sorted(made & wanted[t])})
            made.update(v for op in ops[t] for v in self.step.writes[op] if self._is_chosen(v))
        return held

    def _is_chosen(self, value: int) -> bool:
        """Whether it is for the program to say when the value is there."""
        return self.step.forward[value] and not self.step.held[value]

    def _ran(self, t: int, op: int) -> int:
        """R(t, op)."""
        return ALWAYS if op == self.stages[t].target else self.run[t].get(op, NEVER)

    def _stage(self, t: int) -> None:
        """Everything that holds in stage t."""
        stage, held = self.stages[t], self.held[t]
        later = self.held[t + 1] if t + 1 < len(self.stages) else {}
        ops = (*stage.candidates, stage.target)
        for op in ops:
            for v in self.step.reads[op]:
                if self._is_chosen(v):
                    self._at_least((held.get(v, NEVER), self._ran(t, self.step.writer[v])), self._ran(t, op))
        places: dict[int, Sum] = {op: {} for op in ops}
        certain = dict.fromkeys(ops, stage.fixed)

        def charge(op: int, what: int, size: int) -> None:
            if what == ALWAYS:
                certain[op] += size
            elif what != NEVER and size:
                places[op][what] = places[op].get(what, 0.0) + size

        scratch = self.step.program.arrays.scratch.tolist()
        for op in ops:
            written = sum(self.bytes[v] for v in self.step.writes[op] if not self._is_chosen(v))
            charge(op, self._ran(t, op), scratch[op] + written)
        present = set(held).union(*(self.step.writes[op] for op in ops))
        for v in sorted(v for v in present if self._is_chosen(v)):
            writer = self.step.writer[v]
            here, made, kept = held.get(v, NEVER), self._ran(t, writer), later.get(v, NEVER)
            if here >= 0 and made >= 0:
                self.rows.append(({here: -1.0, made: -1.0}, -1.0))
            self._at_least((here, made), kept)
            alive = kept
            for op in reversed(ops):
                if op < writer:
                    alive = here
                elif op == writer or v in self.step.reads[op]:
                    alive = self._either(self._ran(t, op), alive)
                charge(op, alive, self.bytes[v])
        self.places += [(places[op], certain[op]) for op in ops]

    def _either(self, one: int, other: int) -> int:
        """An unknown that is at least both."""
        if ALWAYS in (one, other):
            return ALWAYS
        if NEVER in (one, other):
            return max(one, other)
        both = self._unknown(0)
        self.rows += [({both: 1.0, one: -1.0}, 0.0), ({both: 1.0, other: -1.0}, 0.0)]
        return both

    def _at_least(self, these: tuple[int, ...], what: int) -> None:
        """The sum of `these` is at least `what`."""
        if what == NEVER or ALWAYS in these:
            return
        row: Sum = {x: 1.0 for x in these if x >= 0}
        if what >= 0:
            row[what] = row.get(what, 0.0) - 1.0
        self.rows.append((row, 1.0 if what == ALWAYS else 0.0))

    def _first_runs(self) -> None:
        """A forward op without a stage of its own runs at least once."""
        for op in range(self.step.boundary):
            if not self.step.essential[op]:
                self.rows.append(({run[op]: 1.0 for run in self.run if op in run}, 1.0))


def stages(step: Step) -> list[Stage]:
    """The stages of a step: of the forward ops that must run before backward begins, then of the backward ops."""
    program = step.program
    sizes = program.arrays.bytes.tolist()
    outputs = [value.role is Role.OUTPUT for value in program.values]
    again = [op.rerunnable and not any(outputs[v] for v in op.writes) for op in program.ops[: step.boundary]]
    last_read = [-1] * len(sizes)
    for op, reads in enumerate(step.reads):
        for v in reads:
            last_read[v] = op
    fixed = [v for v, writer in enumerate(step.writer) if writer >= 0 and not (step.forward[v] and not step.held[v])]
    found = []
    for target in range(len(step.reads)):
        if target < step.boundary and not step.essential[target]:
            continue
        candidates = tuple(op for op in range(min(target, step.boundary)) if again[op])
        there = sum(sizes[v] for v in fixed if step.writer[v] < target and (outputs[v] or last_read[v] >= target))
        found.append(Stage(target, candidates, there))
    return found


def _constraint(rows: list[tuple[Sum, float]], size: int) -> LinearConstraint:
    starts = np.cumsum([0, *(len(sum_) for sum_, _ in rows)])
    columns = np.array([x for sum_, _ in rows for x in sum_], dtype=np.int64)
    numbers = np.array([c for sum_, _ in rows for c in sum_.values()])
    return LinearConstraint(
        csr_array((numbers, columns, starts), shape=(len(rows), size)), lb=[least for _, least in rows]
    )
