"""Methods for a line of sizes: `min_peak`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lowtide.planners import min_peak
from lowtide.planners.sizes import Sizes
from lowtide.solve.solver import Answer, Solver, one_of

MARKS = ("bytes",)


def _min_peak(sizes: Sizes, budget: int | None, options: Mapping[str, Any]) -> Answer:
    found = min_peak.solve(sizes, budget, **options)
    return {"peak": found.peak, "checkpoints": list(found.layers)}


SOLVERS = {"min_peak": Solver(Sizes.from_json, _min_peak, {"objective": one_of(min_peak.Objective)})}
