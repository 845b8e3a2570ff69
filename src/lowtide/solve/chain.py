"""Methods for a chain of stages: `rotor` and `exact`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lowtide.errors import InvalidProblem
from lowtide.planners import exact_chain, rotor
from lowtide.planners.chain import Chain
from lowtide.planners.chain_replay import ChainPlan
from lowtide.planners.fields import shown
from lowtide.solve.solver import Answer, Solver

MARKS = (
    "forward_ns",
    "backward_ns",
    "value_bytes",
    "saved_bytes",
    "grad_bytes",
    "forward_scratch",
    "backward_scratch",
    "loss_scratch",
)


def _slots(number: object, name: str) -> int | None:
    if number is not None and (type(number) is not int or number < 1):
        raise InvalidProblem(f"{name}: {shown(number)} is not a whole number >= 1, nor null", name)
    return number


def _answer(plan: ChainPlan) -> Answer:
    return {"time": plan.time, "peak": plan.peak, "optimal": plan.optimal, "runs": list(plan.runs)}


def _rotor(chain: Chain, budget: int | None, options: Mapping[str, Any]) -> Answer:
    return _answer(rotor.solve(chain, budget, **options))


def _exact(chain: Chain, budget: int | None, options: Mapping[str, Any]) -> Answer:
    return _answer(exact_chain.solve(chain, budget))


SOLVERS = {
    "rotor": Solver(Chain.from_json, _rotor, {"slots": _slots}),
    "exact": Solver(Chain.from_json, _exact),
}
