"""best: the default planner; prices, segments of segments and local search, on a ladder of budgets."""

from __future__ import annotations

import numpy as np

from lowtide.plan import Plan
from lowtide.planners.ladder import Ladder
from lowtide.planners.promise import promise, too_small
from lowtide.planners.replay import replay
from lowtide.planners.step import Step
from lowtide.program import Program

NAME = "best"
SEARCHED = "backward in the program's order; reruns by prices of memory, by segments of segments, and by local search"
KEPT = 10_000  # ops of the steps whose ladders are kept, but for the last one's
_ladders: list[Ladder] = []


def solve(program: Program, budget: int) -> Plan:
    """The fastest plan found whose peak is at most `budget` bytes, with a bound that says how fast any could be.

    Where the plain step fits it is that. Otherwise budgets are halved from the plain step's peak down to this one; at
    each there is a search that begins with what prices of memory say (`priced`), with segments of segments where
    that leaves a gap (`nested`), and with what was found above and below, and goes on by local search. A larger budget
    never gets a slower plan, nor a smaller one a higher peak, but for budgets less than a 64th of the plain step's
    peak apart (of a step of more than 6,000 ops, a 16th; of more than 12,000, a quarter).

    The bound is that of `bound.prove`, over all plans with that order of backward ops. The plan is optimal where its
    gap is 0; otherwise nothing more is claimed than the gap itself. The least budget met is often the working set,
    below which nothing is (see `working_set.WorkingSet`).
    Time: a handful of linear programs with O(n) choices each, and some thousand replays of O(n).
    """
    plain = range(len(program.ops))
    if replay(program, plain).peak <= budget:
        return promise(program, plain, budget, planner=NAME, searched=SEARCHED)
    if not 0 < program.boundary < len(plain):
        raise too_small(program, plain, budget, planner=NAME)
    ladder = ladder_of(program)
    answer = ladder.fastest(budget)
    if answer is None:
        raise too_small(program, ladder.lowest.runs.tolist(), budget, planner=NAME)
    runs, bound = answer.tried.runs.tolist(), answer.proof.at(budget)
    return promise(program, runs, budget, planner=NAME, searched=SEARCHED, bound=bound)


def curve(program: Program, points: int = 30) -> list[Plan]:
    """The plans from the least budget that works to the plain step, by rising peak; at most `points` of them, or 2.

    A plan's budget is its own peak. It takes about as long as a few plans; `solve` at the same budget looks closer, and
    may find a somewhat faster plan.
    """
    plain = range(len(program.ops))
    peak = replay(program, plain).peak
    if not 0 < program.boundary < len(plain):
        return [promise(program, plain, peak, planner=NAME, searched=SEARCHED)]
    ladder = ladder_of(program)
    plans = []
    for answer in ladder.curve(points):
        own, runs = answer.tried.seen.peak, answer.tried.runs.tolist()
        plans.append(promise(program, runs, own, planner=NAME, searched=SEARCHED, bound=answer.proof.at(own)))
    return plans


def forget() -> None:
    """Let go of the ladders that are kept, so that the next plan is made from nothing."""
    _ladders.clear()


def ladder_of(program: Program) -> Ladder:
    """The ladder of a step. Those of the last few are kept, for planning often asks for one several times."""
    for ladder in _ladders:
        if _same(ladder.step.program, program):
            return ladder
    ladder = Ladder(Step.of(program))
    kept = [ladder, *_ladders]
    while len(kept) > 1 and sum(len(one.step.reads) for one in kept) > KEPT:
        kept.pop()
    _ladders[:] = kept
    return ladder


def _same(one: Program, other: Program) -> bool:
    if one is other:
        return True
    return (
        one.fingerprint == other.fingerprint
        and np.array_equal(one.arrays.ns, other.arrays.ns)
        and np.array_equal(one.arrays.scratch, other.arrays.scratch)
    )
