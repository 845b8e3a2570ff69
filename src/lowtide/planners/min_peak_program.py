"""min_peak on a Program: checkpoints of least peak on the step's line of values."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, chain, product

from lowtide.plan import Plan, Reckoned
from lowtide.planners import min_peak
from lowtide.planners.chain_view import NOTHING, Line
from lowtide.planners.menu import Candidate, fastest
from lowtide.planners.min_peak import Objective
from lowtide.planners.rerun import expand
from lowtide.planners.sizes import Sizes
from lowtide.planners.step import Step
from lowtide.program import Program

NAME = "min_peak"
STAGES = 400
TAILS = 48
OBJECTIVES = (Objective.TORCH, Objective.ACTIVATIONS, Objective.SUM)
IGNORES = (
    "what a stage records beside its output, scratch, parameter gradients, outputs, what is kept at no choice, and the "
    "time of making values again"
)


def solve(program: Program, budget: int) -> Plan:
    """Fastest plan of at most `budget` bytes that keeps a tail of the step, and checkpoints of least peak before it.

    The step is cut where one value crosses (`Line`), and once more with far-reaching values kept. A layer is a stage,
    and weighs what crosses after it or, on another try, all that it records. The method itself knows no budget: it has
    the one answer of least peak, at which every other value is made again. To use a larger budget, the last stages are
    kept whole, and checkpoints of least peak are chosen on the line before them, whose last layer weighs what the kept
    stages weigh; for up to 48 such tails, from none to the whole step, by the objectives `torch`, `activations` and
    `sum`. Each plan is replayed, and the fastest that fits is taken.
    Nothing is claimed beyond least peak on the line. Time O(n log n) for each plan.
    Ref: Hong, Tsai, Wang, Liu and Wu 2025, on optimal gradient checkpointing for memory.
    """
    lines = Line.both(Step.of(program), STAGES)
    stages = " or ".join(str(line.stages) for line in lines)
    menu = chain.from_iterable(map(_menu, lines))
    searched = f"checkpoints on a line of {stages} stages, and a tail kept whole"
    return fastest(program, budget, menu, planner=NAME, searched=searched)


def _menu(line: Line) -> Iterator[Candidate]:
    facts = line.chain()
    always = [v for v, kept in enumerate(line.settled) if kept and line.step.forward[v]]
    plain = sum(op.ns for op in line.step.program.ops)
    tails = list(accumulate(reversed(facts.saved_bytes), initial=0))[::-1]  # bytes of the records of stages l+1 to L
    before = list(accumulate(facts.forward_ns, initial=0))
    wide = (0, *facts.saved_bytes)
    for l in sorted({line.stages * i // TAILS for i in range(TAILS + 1)}):
        for layers, objective in product((line.sizes().bytes, wide), OBJECTIVES):
            found = min_peak.solve(Sizes((*layers[:l], tails[l])), objective=objective)
            kept = [line.passed[c] for c in found.layers if c <= l and line.passed[c] != NOTHING]
            tail = [v for stage in range(l + 1, line.stages + 1) for v in line.made_in(stage)]
            runs = expand(line.step, {*always, *kept, *tail})
            yield Candidate(tuple(runs), Reckoned(found.peak, plain + before[l], IGNORES))
