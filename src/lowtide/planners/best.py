"""best: the default planner; every planner that suits, and the fastest answer."""

from __future__ import annotations

from dataclasses import replace

from lowtide.errors import BudgetTooSmall
from lowtide.plan import Plan
from lowtide.planners import keep_all, nested, priced, sqrt
from lowtide.program import Program

LONG = 2000


def solve(program: Program, budget: int) -> Plan:
    """The fastest plan of all planners here whose peak is at most `budget` bytes, with the strongest of their bounds.

    Where the plain step fits it is that. Otherwise planners are asked in turn until one has a plan that is proven
    optimal, and a tie goes to the lower peak. The plan is the best that they find in the union of their classes; its
    bound may be another planner's. On a step of more than 2,000 ops, `nested`, which is slow there, is not asked when
    another's plan lies within 1 % of the bound, and so could be at most that much faster.
    Time: the sum of theirs.
    """
    plans: list[Plan] = []
    refusals: list[BudgetTooSmall] = []
    for planner in (keep_all.solve, priced.solve, sqrt.solve, nested.solve):
        if planner is nested.solve and len(program.ops) > LONG and plans and _near(_best(plans)):
            break
        try:
            plans.append(planner(program, budget))
        except BudgetTooSmall as error:
            refusals.append(error)
            continue
        if plans[-1].gap == 0:
            break
    if not plans:
        least = min(refusals, key=lambda error: error.needed)
        raise BudgetTooSmall(str(least), budget=budget, needed=least.needed, narrowest=least.narrowest)
    return _best(plans)


def _best(plans: list[Plan]) -> Plan:
    fastest = min(plans, key=lambda plan: (plan.time, plan.peak))
    return replace(fastest, bound=max((plan.bound for plan in plans), key=lambda bound: bound.time))


def _near(plan: Plan) -> bool:
    return 100 * plan.gap <= plan.bound.time
