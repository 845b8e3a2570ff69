"""best: the default planner; every planner that suits, and the fastest answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lowtide.errors import BudgetTooSmall
from lowtide.plan import Plan
from lowtide.planners import keep_all, nested, priced, sqrt
from lowtide.program import Program

PLANNERS: tuple[Callable[[Program, int], Plan], ...] = (sqrt.solve, priced.solve, nested.solve)


def solve(program: Program, budget: int) -> Plan:
    """The fastest plan of all planners here whose peak is at most `budget` bytes, with the strongest of their bounds.

    Where the plain step fits it is that. Otherwise every planner is asked, and a tie goes to the lower peak. The
    plan is the best that they find in the union of their classes; its bound may be another planner's.
    Time: the sum of theirs.
    """
    try:
        return keep_all.solve(program, budget)
    except BudgetTooSmall as error:
        refusals = [error]
    plans = []
    for planner in PLANNERS:
        try:
            plans.append(planner(program, budget))
        except BudgetTooSmall as error:
            refusals.append(error)
    if not plans:
        least = min(refusals, key=lambda error: error.needed)
        raise BudgetTooSmall(str(least), budget=budget, needed=least.needed)
    plan = min(plans, key=lambda plan: (plan.time, plan.peak))
    return replace(plan, bound=max((plan.bound for plan in plans), key=lambda bound: bound.time))
