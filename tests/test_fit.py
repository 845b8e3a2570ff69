"""Every model of the zoo, fitted at budgets from the least to all it could use: exact, and inside the budget."""

from __future__ import annotations

import gc

import pytest
import torch

import lowtide
from training import Trace, batch_of, case_of, optimizer_of, train
from zoo import MODELS, Case

# Of these the front end leaves operators outside its graphs, so that their memory depends on the batch.
PARTLY_CAPTURED = {"moe_routed"}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    gc.collect()


def fresh_case(name: str) -> Case:
    """The model on a device where nothing of the one before is left."""
    gc.collect()
    return case_of(name)


def least_budget(name: str) -> int:
    """What the error of a budget of nothing names."""
    case = fresh_case(name)
    with pytest.raises(lowtide.BudgetTooSmall) as error:
        lowtide.plan(case.model, batch_of(case), memory_budget=0, optimizer=optimizer_of(case))
    return error.value.needed


def keep_all_budget(name: str) -> int:
    """What the plain step takes."""
    case = fresh_case(name)
    optimizer = optimizer_of(case)
    return lowtide.plan(case.model, batch_of(case), memory_budget="1TB", optimizer=optimizer, planner="keep_all").total


def plain_trace(name: str) -> Trace:
    """Three steps without Lowtide."""
    case = fresh_case(name)
    return train(case, optimizer_of(case))


@pytest.mark.parametrize("name", MODELS)
def test_exact_and_within_budget(name: str) -> None:
    """Losses, gradients, parameters, buffers and generators bit for bit over three steps; peaks under the budget."""
    plain = plain_trace(name)
    keep_all, least = keep_all_budget(name), least_budget(name)
    assert least <= keep_all
    for share in (0, 0.25, 0.5, 0.75, 1):
        check(name, int(least + share * (keep_all - least)), plain, plain_fits=share == 1)
    case, less = fresh_case(name), int(0.99 * least)
    with pytest.raises(lowtide.BudgetTooSmall):
        lowtide.plan(case.model, batch_of(case), memory_budget=less, optimizer=optimizer_of(case))


def check(name: str, budget: int, plain: Trace, *, plain_fits: bool) -> None:
    """Three steps within a budget."""
    case = fresh_case(name)
    optimizer = optimizer_of(case)
    assert lowtide.fit(case.model, memory_budget=budget, optimizer=optimizer) is case.model
    trained = train(case, optimizer)
    fitted = case.model._compiled_call_impl
    plan = fitted.plan
    assert trained.differences(plain) == []
    assert plan.total <= budget
    assert max(trained.peaks) <= budget
    # What a loss outside needs is estimated, and where that binds the estimate may be too high.
    if name not in PARTLY_CAPTURED and plan.narrowest != "enter":
        assert max(trained.peaks) - fitted.others >= 0.99 * (plan.total - fitted.others)
    if plain_fits:
        assert plan.reruns == 0
