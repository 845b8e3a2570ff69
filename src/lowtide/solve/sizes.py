"""Methods for a line of sizes: `min_peak`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lowtide.errors import InvalidProblem
from lowtide.planners import min_peak
from lowtide.planners.fields import shown
from lowtide.planners.sizes import Sizes
from lowtide.solve.solver import Answer, Solver

MARKS = ("bytes",)


def _objective(word: object, name: str) -> min_peak.Objective:
    known = [objective.value for objective in min_peak.Objective]
    if word not in known:
        raise InvalidProblem(f"{name}: {shown(word)} is not one of {', '.join(known)}", name)
    return min_peak.Objective(word)


def _min_peak(sizes: Sizes, budget: int | None, options: Mapping[str, Any]) -> Answer:
    found = min_peak.solve(sizes, budget, objective=options.get("objective", min_peak.Objective.TORCH))
    return {"peak": found.peak, "checkpoints": list(found.layers)}


SOLVERS = {"min_peak": Solver(Sizes.from_json, _min_peak, {"objective": _objective})}
