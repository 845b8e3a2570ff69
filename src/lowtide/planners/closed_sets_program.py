"""closed_sets on a Program: what to store of the step's dag of values, and the fastest choice that truly fits."""

from __future__ import annotations

from collections.abc import Iterator

from lowtide.plan import Plan, Reckoned
from lowtide.planners import closed_sets
from lowtide.planners.dag_view import Graph
from lowtide.planners.menu import Candidate, fastest
from lowtide.planners.step import Step
from lowtide.program import Program

NAME = "closed_sets"
BOUNDS = 48
IGNORES = "gradients, scratch, outputs, what is kept at no choice, and when values are last read"


def solve(program: Program, budget: int) -> Plan:
    """Fastest of Feng and Huang's stored sets for the step's dag whose peak is at most `budget` bytes.

    The forward values are the dag (`Graph`), between a source and a target of no bytes. The method itself knows no
    budget: it has the one set of least cost. Others come from its own bound on the bytes of a piece: for 48 bounds,
    from nothing to everything, the least that must be stored. Each set is written out as runs, which keep it and make
    all others again when backward wants them, and replayed; and the fastest that fits is taken.
    Optimal for the paper's cost; of the replayed peak nothing is claimed. Where branches end in many places, little
    can be a piece, and the choice is poor.
    Time O(n (n + m)) for the division tree, and O(n log n) for each set.
    Ref: Feng and Huang 2018, arXiv 1808.00079v1.
    """
    graph = Graph.of(Step.of(program))
    searched = f"stored sets with closed pieces between them, of a graph of {len(graph.ops)} values"
    return fastest(program, budget, _menu(graph), planner=NAME, searched=searched)


def _menu(graph: Graph) -> Iterator[Candidate]:
    plain = sum(op.ns for op in graph.step.program.ops)
    if graph.dag is None:
        yield Candidate(graph.expand(()), Reckoned(0, plain, IGNORES))
        return
    time = sum(graph.dag.ns)
    for storage in closed_sets.plans(graph.closed(), bounds=BOUNDS):
        kept = [v - 1 for v in storage.stored]
        again = time - sum(graph.dag.ns[v] for v in kept)
        yield Candidate(graph.expand(kept), Reckoned(storage.cost, plain + again, IGNORES))
