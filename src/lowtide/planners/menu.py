"""Menu: the plans that a method of a paper has for a Program, from which the fastest that fits is taken.

A paper's method reckons with its own model of the step, which is not what the referee sees: it may promise too much or
too little. So a method is asked for its plans over the whole range of budgets that its model knows, none of them
depending on the budget of the user; each is replayed; and the budget chooses among them by what they truly need. More
memory is never slower then, and the least budget that works is the least peak on the menu.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from lowtide.plan import Plan, Reckoned
from lowtide.planners.promise import promise, too_small
from lowtide.planners.replay import replay
from lowtide.program import Program


@dataclass(frozen=True, slots=True)
class Candidate:
    """One plan on the menu.

    runs      op numbers in order
    reckoned  what the method's model says of it
    """

    runs: tuple[int, ...]
    reckoned: Reckoned


def fastest(program: Program, budget: int, menu: Iterable[Candidate], *, planner: str, searched: str) -> Plan:
    """The fastest plan of the menu whose peak is at most `budget` bytes, of equally fast ones the lowest.

    BudgetTooSmall names the least peak on the menu.
    """
    best: tuple[int, int, Candidate] | None = None
    lowest: tuple[int, int, Candidate] | None = None
    tried: set[tuple[int, ...]] = set()
    for candidate in menu:
        if candidate.runs in tried:
            continue
        tried.add(candidate.runs)
        seen = replay(program, candidate.runs)
        if lowest is None or (seen.peak, seen.time) < lowest[:2]:
            lowest = seen.peak, seen.time, candidate
        if seen.peak <= budget and (best is None or (seen.time, seen.peak) < best[:2]):
            best = seen.time, seen.peak, candidate
    assert lowest is not None, "a menu has at least one plan"
    if best is None:
        raise too_small(program, lowest[2].runs, budget, planner=planner)
    plan = promise(program, best[2].runs, budget, planner=planner, searched=searched)
    return replace(plan, reckoned=best[2].reckoned)
