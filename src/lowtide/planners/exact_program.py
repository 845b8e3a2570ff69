"""exact on a Program: an integer program says which op runs again in which stage of the step."""

from __future__ import annotations

from dataclasses import replace
from math import floor, inf
from time import monotonic

from lowtide.errors import BudgetTooSmall, InvalidProblem
from lowtide.plan import Bound, Plan
from lowtide.planners import priced
from lowtide.planners.promise import promise, too_small
from lowtide.planners.replay import replay
from lowtide.planners.stages import Stages
from lowtide.planners.step import Step
from lowtide.program import Program

NAME = "exact"
MOST = 60
SECONDS = 60.0
SLACK = 1e-6  # of what the solver proves, which it reckons in doubles
SEARCHED = "stages of the program's order, one for each op that has its place in it, and an op once in each"
PROVEN = f"an integer program, over {SEARCHED}"


def solve(program: Program, budget: int, *, seconds: float = SECONDS) -> Plan:
    """Fastest plan in stages whose peak is at most `budget` bytes, and a bound on all of them.

    In stages: cut the step into one stage for each backward op and for each forward op that must run before backward
    begins. A stage ends with its own op, in the program's order; before it, every other forward op that may run again
    runs at most once, in the program's order (a forward op that backward alone needs may so have its first run late).
    An op that writes an output of the step runs once. With R(t, i) whether op i runs in stage t and S(t, v) whether
    value v is held as stage t begins,

        minimise    sum of ns(i) R(t, i)
        R(t, i)    <= S(t, v) + R(t, op of v)                for every v that op i reads
        S(t+1, v)  <= S(t, v) + R(t, op of v)
        sum over values of bytes(v) L(t, i, v) + scratch(i) R(t, i) <= budget      at the place of every op in t

    where L(t, i, v), whether v is alive at the place of op i in stage t, is S(t, v) before the op of v, and from there
    on at least R(t, j) for every reader j from i on, and at least S(t+1, v). HiGHS solves it, for at most about
    `seconds`. Its answer is rounded, and the rounded sequence replayed.

    Where the plan's gap is 0 no plan in stages is faster; otherwise time ran out, and the bound is what was proven by
    then. A plan that runs backward ops in another order or an op twice in one stage may be faster
    (test_a_plan_outside_the_stages_can_be_faster). The search begins with the plan of `priced`, which may lie outside
    the class, and stays with it where nothing better is found. A step of more than 60 ops is refused with
    InvalidProblem.
    Ref: Jain et al. 2020, Checkmate, arXiv 1910.02653, whose stages these are.
    """
    step = Step.of(program)
    if len(program.ops) > MOST:
        raise InvalidProblem(
            f"ops: exact takes steps of at most {MOST} ops, and this one has {len(program.ops)}; "
            "ask another planner, such as 'best'",
            "ops",
        )
    if step.boundary == len(program.ops):
        return replace(priced.solve(program, budget), planner=NAME)
    end = monotonic() + seconds
    stages = Stages(step)
    try:
        known = priced.solve(program, budget)
    except BudgetTooSmall as error:
        runs = stages.lowest(error.needed, seconds / 2).runs
        if runs is None or replay(program, runs).peak >= error.needed:
            raise
        if replay(program, runs).peak > budget:
            raise too_small(program, runs, budget, planner=NAME) from error
        known = promise(program, runs, budget, planner=NAME, searched=SEARCHED)
    if known.gap == 0:
        return promise(program, known.runs, budget, planner=NAME, searched=SEARCHED, bound=known.bound)
    plain = int(program.arrays.ns.sum())
    found = stages.fastest(budget, known.time - plain, end - monotonic())
    runs = known.runs
    if found.runs is not None and replay(program, found.runs).peak <= budget:
        runs = min(found.runs, runs, key=lambda runs: replay(program, runs).time)
    best = promise(program, runs, budget, planner=NAME, searched=SEARCHED)
    if found.ended and (found.runs is None or best.runs == found.runs):
        least = best.time
    elif found.least > -inf:
        least = plain + floor(found.least - SLACK * abs(found.least))
    else:
        least = 0
    bound = Bound(least, PROVEN)
    return replace(best, bound=max(bound, known.bound, key=lambda bound: bound.time))
