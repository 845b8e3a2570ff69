"""Every planner on every model of the zoo: refereed, inside three budgets, carried out, and exact.

A model is captured once, while one step of it is trained on rotor's plan and compared with plain PyTorch. All other
sequences are written as modules for the same graphs, and what those hand out is compared with what the plain sequence's
modules do, from the same drawn inputs. `best` is not asked here: test_fit trains every model on its plans.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import fx

from lowtide import referee
from lowtide.apply.emit import emit, is_tangent
from lowtide.capture import step
from lowtide.captured import Captured
from lowtide.errors import BudgetTooSmall, InvalidProblem
from lowtide.fitted import Fitted, Settings
from lowtide.plan import Plan
from lowtide.planners import exact_program, lower_sets, rotor_program
from lowtide.planners.registry import PLANNERS
from lowtide.planning import Reached, plan_step
from training import case_of, optimizer_of, same, train
from zoo import MODELS

ASKED = PLANNERS.keys() - {"best"}
ENOUGH = 1 << 50


@pytest.fixture(autouse=True)
def _strategies_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a model are the same for each budget."""
    torch._dynamo.reset()
    monkeypatch.setattr(lower_sets, "plans", functools.cache(lower_sets.plans))


@dataclass
class Planned:
    """Plans a step halfway between the least memory and the plain step's, and remembers what it came to."""

    reached: list[Reached] = field(default_factory=list)

    def __call__(self, reached: Reached) -> Plan:
        self.reached.append(reached)
        return plan_step(reached, middle(reached), rotor_program.solve)


def plain_budget(reached: Reached) -> int:
    return plan_step(reached, ENOUGH, PLANNERS["keep_all"]).total


def middle(reached: Reached) -> int:
    return (least_budget(reached, "rotor") + plain_budget(reached)) // 2


def least_budget(reached: Reached, name: str) -> int:
    """What the planner's error of a budget of nothing names."""
    with pytest.raises(BudgetTooSmall) as error:
        plan_step(reached, 0, PLANNERS[name])
    return error.value.needed


@pytest.mark.parametrize("name", MODELS)
def test_every_planner_on_every_model(name: str) -> None:
    reached = trained_on_rotor(name)
    carried_out = CarriedOut(reached)
    for planner in sorted(ASKED):
        for budget in budgets(reached, planner):
            plan = plan_step(reached, budget, PLANNERS[planner])
            outcome = referee.run(reached.joined, plan.runs)
            assert (plan.planner, outcome.time) == (planner, plan.time)
            assert outcome.peak <= plan.peak <= budget - plan.static, planner
            assert carried_out.differences(plan) == [], planner


def budgets(reached: Reached, planner: str) -> Iterator[int]:
    """The planner's least, the plain step's, and halfway; none where the planner itself refuses the step."""
    ops = len(reached.joined.ops)
    if planner == "exact" and ops > exact_program.MOST:
        with pytest.raises(InvalidProblem, match=f"takes steps of at most {exact_program.MOST} ops"):
            plan_step(reached, ENOUGH, PLANNERS[planner])
    else:
        least, most = least_budget(reached, planner), plain_budget(reached)
        yield from (least, (least + most) // 2, most)


def trained_on_rotor(name: str) -> Reached:
    """What the model's step came to. One step of it on rotor's plan leaves what plain PyTorch leaves."""
    case = case_of(name)
    plain = train(case, optimizer_of(case), steps=1)
    case = case_of(name)
    planned = Planned()
    settings = Settings(planned, rotor_program.solve, None, None, 16)
    case.model._compiled_call_impl = Fitted(case.model, settings)
    # A model of several graphs runs its first step on the least memory, and only the second one on the plan.
    assert train(case, optimizer_of(case), steps=1).differences(plain) == []
    return replace(planned.reached[-1], ran=())


class CarriedOut:
    """The graphs of a step, what is put into them, and what the plain sequence hands out.

    seen   the sequences compared so far, with what differed
    """

    def __init__(self, reached: Reached) -> None:
        self.reached = reached
        self.inputs = [drawn(graph) for graph in reached.graphs]
        self.plain = self.hand_out(range(len(reached.joined.ops)))
        self.seen: dict[tuple[int, ...], list[str]] = {}

    def hand_out(self, runs: Any) -> dict[str, Any]:
        """All outputs, gradients and inputs as they are afterwards, and the generator, by name."""
        parts = step.split(self.reached.programs, runs)
        found: dict[str, Any] = {}
        for number, (graph, inputs, part) in enumerate(zip(self.reached.graphs, self.inputs, parts, strict=True)):
            torch.manual_seed(3)
            outputs = both(graph, part, inputs)
            found |= {f"graph {number} result {i}": result for i, result in enumerate(outputs)}
            found[f"graph {number} generator"] = torch.get_rng_state()
        return found

    def differences(self, plan: Plan) -> list[str]:
        """Names of what is not the same to the last bit."""
        if plan.runs not in self.seen:
            found = self.hand_out(plan.runs)
            assert found.keys() == self.plain.keys()
            self.seen[plan.runs] = [key for key, result in found.items() if not alike(result, self.plain[key])]
        return self.seen[plan.runs]


def alike(one: Any, other: Any) -> bool:
    return same(one, other) if isinstance(one, torch.Tensor | None) else bool(one == other)


def drawn(graph: Captured) -> dict[str, Any]:
    """Inputs of a joint graph by name: numbers between a half and one and a half, and zeros for what counts."""
    generator = torch.Generator().manual_seed(5)

    def like(node: fx.Node) -> Any:
        example = node.meta["val"]
        if not isinstance(example, torch.Tensor):
            return example
        tensor = torch.empty_strided(example.shape, example.stride(), dtype=example.dtype)
        if not example.is_floating_point():
            return tensor.zero_()
        return tensor.copy_(torch.rand(example.shape, generator=generator) + 0.5)

    return {node.name: like(node) for node in graph.joint.graph.find_nodes(op="placeholder")}


def both(graph: Captured, runs: list[int], inputs: dict[str, Any]) -> list[Any]:
    """What the forward and the backward module hand out, and what the inputs are then."""
    inputs = {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in inputs.items()}
    forward, backward, _ = emit(graph, runs)
    nodes = graph.joint.graph.find_nodes(op="placeholder")
    with torch.no_grad():
        results = forward(*(inputs[node.name] for node in nodes if not is_tangent(node)))
        gradients = backward(*results[graph.forward_outputs :], *(inputs[n.name] for n in nodes if is_tangent(n)))
    return [*results[: graph.forward_outputs], *gradients, *inputs.values()]


def test_no_planner_is_left_out() -> None:
    assert {
        *("closed_sets", "exact", "greedy", "keep_all", "lower_sets", "min_peak"),
        *("nested", "priced", "rotor", "sqrt"),
    } == ASKED
