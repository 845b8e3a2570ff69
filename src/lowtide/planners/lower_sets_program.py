"""lower_sets on a Program: strategies of the step's dag of values, and the fastest that truly fits."""

from __future__ import annotations

from collections.abc import Iterator

from lowtide.plan import Plan, Reckoned
from lowtide.planners import lower_sets
from lowtide.planners.dag_view import Graph
from lowtide.planners.menu import Candidate, fastest
from lowtide.planners.step import Step
from lowtide.program import Program

NAME = "lower_sets"
SETS = 250
BUDGETS = 12
IGNORES = (
    "which gradients there are and what backward truly reads, scratch, outputs, what is kept at no choice, and when "
    "values are last read: it counts every block twice"
)


def solve(program: Program, budget: int) -> Plan:
    """Fastest of Kusumoto's strategies for the step's dag whose peak is at most `budget` bytes.

    The forward values are the dag (`Graph`), and at most 250 sets of the family `pruned` the lower sets. Strategies of
    least and of most extra time are asked for at 12 budgets of the method's own; each is written out as runs, which
    keep what crosses the cuts, with the last block or without it, and replayed; and the fastest that fits is taken.
    Optimal for the paper's formula over these sets; of the replayed peak nothing is claimed.
    Time that of `lower_sets.solve` for 250 sets, 24 times; the sets themselves O(n^2).
    Ref: Kusumoto, Inoue, Watanabe, Akiba and Koyama 2019, arXiv 1905.11722.
    """
    graph = Graph.of(Step.of(program))
    searched = f"sequences of lower sets of a graph of {len(graph.ops)} values"
    return fastest(program, budget, _menu(graph), planner=NAME, searched=searched)


def _menu(graph: Graph) -> Iterator[Candidate]:
    ops = graph.step.program.ops
    plain = sum(op.ns for op in ops)
    everything = sum(graph.dag.bytes) if graph.dag is not None else 0
    yield Candidate(graph.expand(range(len(graph.ops))), Reckoned(2 * everything, plain, IGNORES))
    if graph.dag is None:
        return
    for cuts in lower_sets.plans(graph.dag, sets=SETS, budgets=BUDGETS):
        for kept in (cuts.kept, cuts.kept | cuts.last):
            yield Candidate(graph.expand(kept), Reckoned(cuts.peak, plain + cuts.time, IGNORES))
