"""Every model of the zoo, fitted at budgets from the least to all it could use: exact, and inside the budget."""

from __future__ import annotations

import gc

import pytest
import torch

import lowtide
from training import batch_of, case_of, optimizer_of, train
from zoo import MODELS

# Of these the front end leaves operators outside its graphs, so that their memory depends on the batch.
PARTLY_CAPTURED = {"moe_routed"}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    gc.collect()


def least_budget(name: str) -> int:
    """What the error of a budget of nothing names."""
    case = case_of(name)
    with pytest.raises(lowtide.BudgetTooSmall) as error:
        lowtide.plan(case.model, batch_of(case), memory_budget=0, optimizer=optimizer_of(case))
    return error.value.needed


@pytest.mark.parametrize("name", MODELS)
def test_exact_and_within_budget(name: str) -> None:
    """Losses, gradients, parameters, buffers and generators bit for bit over three steps; peaks under the budget."""
    plain_case = case_of(name)
    plain = train(plain_case, optimizer_of(plain_case))
    case = case_of(name)
    keep_all = lowtide.plan(
        case.model, batch_of(case), memory_budget="1TB", optimizer=optimizer_of(case), planner="keep_all"
    ).total
    least = least_budget(name)
    assert least <= keep_all
    for share in (0, 0.25, 0.5, 0.75, 1):
        budget = int(least + share * (keep_all - least))
        case = case_of(name)
        optimizer = optimizer_of(case)
        assert lowtide.fit(case.model, memory_budget=budget, optimizer=optimizer) is case.model
        trained = train(case, optimizer)
        plan = case.model._compiled_call_impl.plan
        assert trained.differences(plain) == []
        assert plan.total <= budget
        assert max(trained.peaks) <= budget
        # What a loss outside needs is estimated, and where that binds the estimate may be too high.
        if name not in PARTLY_CAPTURED and plan.narrowest != "enter":
            assert max(trained.peaks) >= 0.99 * plan.total
        if share == 1:
            assert plan.reruns == 0
    case, less = case_of(name), int(0.99 * least)
    with pytest.raises(lowtide.BudgetTooSmall):
        lowtide.plan(case.model, batch_of(case), memory_budget=less, optimizer=optimizer_of(case))
