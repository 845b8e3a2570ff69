"""From a promise to what was compiled: a plan whose code, as Inductor wrote it, keeps to the budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from lowtide import referee
from lowtide.budget import show
from lowtide.compiled.peaks import Peaks
from lowtide.errors import BudgetTooSmall
from lowtide.plan import Plan
from lowtide.planners.registry import Planner
from lowtide.planning import Reached, plan_step

ROUNDS = 4  # plans that are compiled for one budget, at most, and the one of least memory besides
CLOSE = 0.01  # share of the budget that may stay unused before a faster plan is looked for


@dataclass(frozen=True, slots=True)
class Planning:
    """How steps are planned: within how many bytes, and by whom."""

    budget: int
    planner: Planner

    def __call__(self, reached: Reached, correction: int = 0) -> Plan:
        """The plan within the budget, where code holds `correction` bytes more than a plan promises."""
        try:
            plan = plan_step(reached, self.budget - correction, self.planner)
        except BudgetTooSmall as error:
            if not correction:
                raise
            needed = error.needed + correction
            raise _too_small(self.budget, needed, reached.held.static, error.narrowest) from error
        return replace(plan, budget=plan.budget + correction, peak=plan.peak + correction)

    def least(self, reached: Reached) -> Plan:
        """The plan of least memory."""
        try:
            return plan_step(reached, 0, self.planner)
        except BudgetTooSmall as error:
            return plan_step(reached, error.needed, self.planner)


def settle(planning: Planning, reached: Reached, compiled: Callable[[Plan], Peaks]) -> Plan:
    """The fastest plan found whose code keeps to the budget; its peak is the code's own.

    Plans are compiled in turn, each for the budget less what the code of the one before held above its promise, until
    one keeps to the budget and leaves little of it, or `ROUNDS` are over. Where none keeps to it, the plan of least
    memory is compiled; if that does not, it says what is needed, and a budget of that many bytes works.
    """
    held, program = reached.held, reached.joined
    static, optimizer = held.static, held.after(program)
    tried: set[tuple[int, ...]] = set()
    best: Plan | None = None
    correction, most, fewest = 0, None, None  # The most that was seen to be too little, the fewest that were enough.
    for _ in range(ROUNDS):
        try:
            plan = planning(reached, correction)
        except BudgetTooSmall:
            break
        if plan.runs in tried:
            break
        tried.add(plan.runs)
        holds = compiled(plan)
        above = holds.peak - referee.run(program, plan.runs).peak
        plan = _as_compiled(plan, holds, planning.budget, static, optimizer)
        fits = plan.total <= planning.budget
        if fits and (best is None or (plan.time, plan.peak) < (best.time, best.peak)):
            best = plan
        if fits and (not plan.reruns or planning.budget - plan.total <= CLOSE * planning.budget):
            break
        most, fewest = (most, correction) if fits else (correction, fewest)
        correction = _next(above, most, fewest)
    if best is not None:
        return best
    plan = planning.least(reached)
    plan = _as_compiled(plan, compiled(plan), planning.budget, static, optimizer)
    if plan.total > planning.budget:
        raise _too_small(planning.budget, plan.total, static, plan.narrowest)
    return plan


def _next(above: int, most: int | None, fewest: int | None) -> int:
    """The correction to try: what was seen last, or half way where that was tried to no avail."""
    if (most is None or above > most) and (fewest is None or above < fewest):
        return above
    if most is None or fewest is None:
        return above + 1 if most is not None else above - 1
    return (most + fewest) // 2


def _as_compiled(plan: Plan, holds: Peaks, budget: int, static: int, optimizer: int) -> Plan:
    peak, narrowest = holds.peak, holds.where
    if optimizer - static > peak:
        peak, narrowest = optimizer - static, "the optimizer's step"
    return replace(plan, budget=budget - static, static=static, peak=peak, narrowest=narrowest)


def _too_small(budget: int, needed: int, static: int, place: str) -> BudgetTooSmall:
    return BudgetTooSmall(
        f"no plan that Inductor was seen to keep fits in {show(budget)}: this step needs at least {show(needed)} "
        f"({needed} bytes: static {show(static)} + step {show(needed - static)}).\n"
        f"The narrowest place is {place}: {show(needed - static)} at once.\n"
        f"Raise memory_budget to {needed}, or make that smaller (shorter sequences, smaller batch).",
        budget=budget,
        needed=needed,
        narrowest=place,
    )
