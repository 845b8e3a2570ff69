"""Promise: a sequence that a planner has settled on, as a Plan; or the error that says what would have been needed."""

from __future__ import annotations

from collections.abc import Sequence

from lowtide.errors import BudgetTooSmall
from lowtide.plan import Bound, Plan
from lowtide.planners.replay import Replay, replay
from lowtide.program import Program

ONCE = "every op runs at least once"


def promise(
    program: Program, runs: Sequence[int], budget: int, *, planner: str, searched: str, bound: Bound | None = None
) -> Plan:
    """The Plan that runs `runs`; it must fit. Without a better bound, no step is faster than each op run once."""
    seen = replay(program, runs)
    assert seen.peak <= budget, f"{planner} promises {seen.peak} bytes in a budget of {budget}"
    return Plan(
        runs=tuple(map(int, runs)),
        budget=budget,
        peak=seen.peak,
        time=seen.time,
        planner=planner,
        searched=searched,
        program=program.fingerprint,
        bound=bound if bound is not None else every_op_once(program),
    )


def every_op_once(program: Program) -> Bound:
    """The time of the plain step, below which nothing is."""
    return Bound(int(program.arrays.ns.sum()), ONCE)


def too_small(program: Program, runs: Sequence[int], budget: int, *, planner: str) -> BudgetTooSmall:
    """The error of a planner whose least peak is that of `runs`, with the narrowest place named."""
    if not len(runs):
        return BudgetTooSmall(
            f"{planner}: a budget of {budget} bytes is below 0", budget=budget, needed=0, narrowest=""
        )
    seen: Replay = replay(program, runs)
    op = program.ops[runs[seen.at]]
    where = f" in {op.where}" if op.where else ""
    return BudgetTooSmall(
        f"{planner}: no plan of this kind fits in {budget} bytes: at least {seen.peak} are needed.\n"
        f"The narrowest place is {op.name}{where}: {seen.peak} bytes at once.",
        budget=budget,
        needed=seen.peak,
        narrowest=f"{op.name}{where}",
    )
