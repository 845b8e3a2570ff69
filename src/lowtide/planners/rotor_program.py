"""rotor on a Program: the step as a chain of stages, and the fastest persistent plan that truly fits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from lowtide.plan import Plan, Reckoned
from lowtide.planners import rotor
from lowtide.planners.chain_view import Line
from lowtide.planners.menu import Candidate, fastest
from lowtide.planners.step import Step
from lowtide.program import Program

NAME = "rotor"
STAGES = 100
SLOTS = 200
PLANS = 96
IGNORES = (
    "parameter gradients, outputs, what is kept at no choice, and that a stage could be recorded in part; "
    "what a stage needs beside its input and output it counts as there to its end"
)


def solve(program: Program, budget: int) -> Plan:
    """Fastest of rotor's plans for the step's line of stages whose peak is at most `budget` bytes.

    The step is cut where one value crosses (`Line`), and once more with far-reaching values kept, into at most 100
    stages; rotor plans that chain for 96 budgets at most, on a grid of 200 amounts; each plan is written out as runs of
    ops and replayed, and the fastest that fits is taken. A step without narrow places is one stage, and has the plain
    step only.
    Optimal over persistent plans of the chain where the model is the step; in general nothing is claimed.
    Time O(L^3 M) for L stages and M amounts, and O(n log n) for each plan.
    Ref: Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova 2019, arXiv 1911.13214.
    """
    lines = Line.both(Step.of(program), STAGES)
    stages = " or ".join(str(line.stages) for line in lines)
    menu = chain.from_iterable(map(_menu, lines))
    searched = f"persistent plans of a chain of {stages} stages"
    return fastest(program, budget, menu, planner=NAME, searched=searched)


def _menu(line: Line) -> Iterator[Candidate]:
    ops = line.step.program.ops
    once = sum(op.ns for op in ops[: line.step.boundary] if not op.rerunnable)
    for plan in rotor.plans(line.chain(), slots=SLOTS, most=PLANS):
        yield Candidate(line.expand(plan.runs), Reckoned(plan.peak, plan.time + once, IGNORES))
