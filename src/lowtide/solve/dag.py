"""Methods for a dag: `lower_sets`, `closed_sets` and `exact`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lowtide.planners import closed_sets, exact_dag, lower_sets
from lowtide.planners.dag import Dag
from lowtide.planners.lower_set_family import Family
from lowtide.planners.lower_sets import Prefer
from lowtide.solve.solver import Answer, Solver, one_of

MARKS = ("bytes", "ns", "edges")


def _lower_sets(dag: Dag, budget: int | None, options: Mapping[str, Any]) -> Answer:
    """`sequence` lists L_1 to L_k."""
    found = lower_sets.solve(dag, budget, **options)
    return {
        "time": found.time,
        "peak": found.peak,
        "liveness_peak": found.liveness_peak,
        "sequence": [sorted(lower) for lower in found.sequence],
    }


def _closed_sets(dag: Dag, budget: int | None, options: Mapping[str, Any]) -> Answer:
    """The budget is held against the cost."""
    found = closed_sets.solve(dag, budget)
    return {"cost": found.cost, "stored": list(found.stored)}


def _exact(dag: Dag, budget: int | None, options: Mapping[str, Any]) -> Answer:
    found = exact_dag.solve(dag, budget)
    return {"time": found.time, "peak": found.peak}


SOLVERS = {
    "lower_sets": Solver(Dag.from_json, _lower_sets, {"family": one_of(Family), "prefer": one_of(Prefer)}),
    "closed_sets": Solver(Dag.from_json, _closed_sets),
    "exact": Solver(Dag.from_json, _exact),
}
