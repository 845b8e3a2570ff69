"""The frontier of a real model: a curve of plans, any of which can be carried out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lowtide
from lowtide.planning import Reached, plan_curve
from tests.planners.test_planners import chain


def model() -> nn.Sequential:
    """Six layers."""
    torch.manual_seed(0)
    layers = (nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(6))
    return nn.Sequential(*layers, nn.Linear(32, 1))


def test_each_plan_costs_less_time_and_more_bytes_than_the_one_before() -> None:
    batch = torch.randn(256, 32)
    curve = lowtide.frontier(model(), batch)
    totals, times = [plan.total for plan in curve.plans], [plan.time for plan in curve.plans]
    assert len(totals) > 5
    assert totals == sorted(set(totals))
    assert times == sorted(set(times), reverse=True)
    assert curve.working_set <= curve.least < curve.plain
    assert curve.plans[-1].reruns == 0
    assert lowtide.plan(model(), batch, memory_budget=curve.least).total <= curve.least
    with pytest.raises(lowtide.BudgetTooSmall):
        lowtide.plan(model(), batch, memory_budget=curve.least - 1)
    assert str(curve).count("\n") == len(totals) + 1


def test_a_plan_of_it_can_be_applied() -> None:
    batch = torch.randn(256, 32)
    plain, planned = model(), model()
    lowtide.apply(planned, lowtide.frontier(planned, batch).plans[0])
    for trained in (plain, planned):
        trained(batch).square().mean().backward()
    for one, other in zip(plain.parameters(), planned.parameters()):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)


def test_the_fastest_within_a_budget() -> None:
    curve = lowtide.frontier(model(), torch.randn(256, 32), points=6)
    for plan in curve.plans:
        assert curve.fastest(plan.total) is plan
    with pytest.raises(lowtide.BudgetTooSmall, match=f"Raise memory_budget to {curve.least}"):
        curve.fastest(curve.least - 1)
    with pytest.raises(lowtide.InvalidBudget):
        curve.fastest("80%")
    with pytest.raises(lowtide.LowtideError, match="points=1"):
        lowtide.frontier(model(), torch.randn(256, 32), points=1)


def test_what_binds_besides_the_timeline_is_where_the_curve_begins() -> None:
    """An optimizer's step that takes 55 bytes, beside nine layers of 10: the plan of 50 bytes is that of 55."""
    from lowtide.planners import best
    from lowtide.planning import plan_step

    class Stub:
        static = 0

        def after(self, program: object) -> int:
            return 55

    class Graph:
        program = chain(9)
        costs = ""

    reached = Reached((Graph(),), Stub())  # type: ignore[arg-type]
    assert plan_curve(reached, 30).plans[0].time == plan_step(reached, 55, best.solve).time == 34
