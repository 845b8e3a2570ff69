"""keep_all: the plain step, every op once, in the program's own order."""

from __future__ import annotations

from lowtide.plan import Plan
from lowtide.planners.promise import promise, too_small
from lowtide.planners.replay import replay
from lowtide.program import Program


def solve(program: Program, budget: int) -> Plan:
    """The step as PyTorch runs it, if it fits in `budget` bytes.

    Nothing is minimised: the class holds one sequence, and its time is the least there is, so that the plan is
    optimal over all plans wherever it fits. Other orders of the same runs may need less memory.
    Time O(n log n).
    """
    runs = range(len(program.ops))
    if replay(program, runs).peak > budget:
        raise too_small(program, runs, budget, planner="keep_all")
    return promise(program, runs, budget, planner="keep_all", searched="the program's own order, nothing run again")
