"""best: the default planner; every planner that suits, and the fastest answer."""

from __future__ import annotations

from lowtide.plan import Plan
from lowtide.planners import priced
from lowtide.planners.ladder import Ladder
from lowtide.planners.promise import promise, too_small
from lowtide.planners.replay import replay
from lowtide.planners.step import Step
from lowtide.program import Program

NAME = "best"
SEARCHED = "backward in the program's order; reruns by prices of memory, by segments of segments, and by local search"


def solve(program: Program, budget: int) -> Plan:
    step = Step.of(program)
    plain = range(len(program.ops))
    if replay(program, plain).peak <= budget:
        return promise(program, plain, budget, planner=NAME, searched=SEARCHED)
    if not step.boundary or step.boundary == len(plain):
        raise too_small(program, plain, budget, planner=NAME)
    ladder = Ladder(step)
    found = ladder.fastest(budget)
    if found is None:
        raise too_small(program, ladder.lowest.runs.tolist(), budget, planner=NAME)
    _, bound = priced.narrowed(step, budget)
    return promise(program, found.runs.tolist(), budget, planner=NAME, searched=SEARCHED, bound=bound)
