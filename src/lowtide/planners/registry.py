"""Every planner of a captured Program, by the name that users give. The one place where a planner is added."""

from __future__ import annotations

from collections.abc import Callable

from lowtide.plan import Plan
from lowtide.planners import (
    best,
    closed_sets_program,
    exact_program,
    greedy,
    keep_all,
    lower_sets_program,
    min_peak_program,
    nested,
    priced,
    rotor_program,
    sqrt,
)
from lowtide.program import Program

# From a Program and the bytes its timeline may take; BudgetTooSmall where the planner has no plan within them.
Planner = Callable[[Program, int], Plan]

PLANNERS: dict[str, Planner] = {
    "best": best.solve,
    "closed_sets": closed_sets_program.solve,
    "exact": exact_program.solve,
    "greedy": greedy.solve,
    "keep_all": keep_all.solve,
    "lower_sets": lower_sets_program.solve,
    "min_peak": min_peak_program.solve,
    "nested": nested.solve,
    "priced": priced.solve,
    "rotor": rotor_program.solve,
    "sqrt": sqrt.solve,
}
