"""Every planner of a captured Program, by the name that users give. The one place where a planner is added."""

from __future__ import annotations

from collections.abc import Callable

from lowtide.plan import Plan
from lowtide.planners import best, exact_program, greedy, keep_all, nested, priced, sqrt
from lowtide.program import Program

# From a Program and the bytes its timeline may take; BudgetTooSmall where the planner has no plan within them.
Planner = Callable[[Program, int], Plan]

PLANNERS: dict[str, Planner] = {
    "best": best.solve,
    "exact": exact_program.solve,
    "greedy": greedy.solve,
    "keep_all": keep_all.solve,
    "nested": nested.solve,
    "priced": priced.solve,
    "sqrt": sqrt.solve,
}
