"""Lines of `lowtide solve` about a dag: fields and options in, the answer of one of the dag planners out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

from lowtide.errors import BudgetTooSmall, InvalidProblem
from lowtide.planners import closed_sets, exact_dag, lower_sets
from lowtide.planners.dag import Dag
from lowtide.planners.lower_set_family import Family
from lowtide.planners.lower_sets import Prefer

Answer = dict[str, Any]
Solver = Callable[[Mapping[str, Any], int | None, Mapping[str, Any]], Answer]
E = TypeVar("E", bound=Enum)


def solve_lower_sets(problem: Mapping[str, Any], budget: int | None, options: Mapping[str, Any]) -> Answer:
    """Options: `family` ("exact" or "pruned"), `prefer` ("time" or "memory"). `sequence` lists L_1 to L_k."""
    dag = Dag.from_json(problem)
    _check_options(options, {"family", "prefer"})
    family = _option(Family, options, "family", Family.EXACT)
    prefer = _option(Prefer, options, "prefer", Prefer.TIME)
    try:
        found = lower_sets.solve(dag, _checked(budget), family=family, prefer=prefer)
    except BudgetTooSmall as error:
        return {"feasible": False, "needed": error.needed}
    return {
        "feasible": True,
        "time": found.time,
        "peak": found.peak,
        "liveness_peak": found.liveness_peak,
        "sequence": [sorted(lower) for lower in found.sequence],
    }


def solve_closed_sets(problem: Mapping[str, Any], budget: int | None, options: Mapping[str, Any]) -> Answer:
    """No options. The budget is held against the cost."""
    dag = Dag.from_json(problem)
    _check_options(options, set())
    try:
        found = closed_sets.solve(dag, _checked(budget))
    except BudgetTooSmall as error:
        return {"feasible": False, "needed": error.needed}
    return {"feasible": True, "cost": found.cost, "stored": list(found.stored)}


def solve_exact(problem: Mapping[str, Any], budget: int | None, options: Mapping[str, Any]) -> Answer:
    """No options."""
    dag = Dag.from_json(problem)
    _check_options(options, set())
    try:
        found = exact_dag.solve(dag, _checked(budget))
    except BudgetTooSmall as error:
        return {"feasible": False, "needed": error.needed}
    return {"feasible": True, "time": found.time, "peak": found.peak}


SOLVERS: dict[str, Solver] = {
    "lower_sets": solve_lower_sets,
    "closed_sets": solve_closed_sets,
    "exact": solve_exact,
}


def _checked(budget: int | None) -> int | None:
    if budget is None or (isinstance(budget, int) and not isinstance(budget, bool)):
        return budget
    raise InvalidProblem(f"budget: must be a whole number of bytes or null, found {budget!r}", "budget")


def _check_options(options: Mapping[str, Any], known: set[str]) -> None:
    for name in options:
        if name not in known:
            has = f"it has {', '.join(sorted(known))}" if known else "it has none"
            raise InvalidProblem(f"{name}: this method has no such option; {has}", str(name))


def _option(kind: type[E], options: Mapping[str, Any], name: str, default: E) -> E:
    if name not in options:
        return default
    words = [member.value for member in kind]
    if options[name] not in words:
        raise InvalidProblem(f"{name}: must be one of {', '.join(words)}, found {options[name]!r}", name)
    return kind(options[name])
