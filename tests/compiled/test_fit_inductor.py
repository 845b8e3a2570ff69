"""Compiled steps inside budgets: the numbers of plain torch.compile, in the memory that was promised."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import lowtide
from compiled.models import Broken, RunningMean, Tied, Total
from compiled.steps import measured, same, trace
from zoo import MODELS

WORDS = torch.arange(16 * 24).reshape(16, 24) % 20
HIDDEN = 500  # bytes that an operator takes and gives back inside itself


def fitted(model: nn.Module, budget: int) -> nn.Module:
    """A copy of the model that trains inside the budget."""
    return lowtide.fit(copy.deepcopy(model), memory_budget=budget, backend="inductor")


def plan_of(model: nn.Module) -> lowtide.Plan:
    """The plan that a fitted model carries out."""
    plan: lowtide.Plan = model._compiled_call_impl.plan  # type: ignore[union-attr]
    return plan


def test_a_budget_gives_the_numbers_of_plain_compile_in_the_memory_promised() -> None:
    """Dropout, batch norm and tied weights; at plain compile's own peak it is plain compile."""
    torch.manual_seed(0)
    model = Tied()
    plain = copy.deepcopy(model)
    compiled = torch.compile(plain, dynamic=False)
    expected, plain_peak = trace(plain, compiled, WORDS), measured(plain, compiled, WORDS)
    for budget, again in ((plain_peak + HIDDEN, False), (int(0.8 * plain_peak), True)):
        mine = fitted(model, budget)
        assert same(trace(mine, mine, WORDS), expected)
        plan, peak = plan_of(mine), measured(mine, mine, WORDS)
        assert (plan.reruns > 0) == again
        assert plan.total <= budget
        assert plan.total - HIDDEN <= peak <= plan.total + HIDDEN


def test_the_budget_that_the_error_names_works_and_less_does_not() -> None:
    """And in between, more memory is never slower, nor less memory a higher peak."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(4)), Total())
    batch = torch.randn(128, 32)
    with pytest.raises(lowtide.BudgetTooSmall, match="static") as refused:
        fitted(model, 1000)(batch)
    least = refused.value.needed
    with pytest.raises(lowtide.BudgetTooSmall):
        fitted(model, least - 1)(batch)
    peaks, times = [], []
    for budget in (least, least + 20_000, least + 60_000):
        mine = fitted(model, budget)
        mine(batch).backward()
        mine.zero_grad()
        peaks.append(measured(mine, mine, batch))
        times.append(plan_of(mine).time)
        assert peaks[-1] <= plan_of(mine).total <= budget
    assert peaks == sorted(peaks)
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


def test_a_plan_is_compiled_and_not_run_and_is_what_fit_then_carries_out() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 32), Total())
    batch = torch.randn(128, 32)
    plan = lowtide.plan(model, batch, memory_budget="1MiB", backend="inductor")
    assert model[1].num_batches_tracked == 0
    mine = lowtide.fit(model, memory_budget="1MiB", backend="inductor", batch=batch)
    assert model[1].num_batches_tracked == 0
    assert plan_of(mine) == plan
    mine(batch).backward()
    assert plan_of(mine) == plan
    assert model[1].num_batches_tracked == 1
    assert lowtide.unfit(mine)._compiled_call_impl is None


def test_without_training_it_is_plain_compile() -> None:
    torch.manual_seed(0)
    model = RunningMean()
    batch = torch.randn(8, 4)
    mine = fitted(model, 2**30)
    plain = torch.compile(copy.deepcopy(model), dynamic=False)
    with torch.no_grad():
        assert torch.equal(mine.eval()(batch), plain.eval()(batch))
    assert plan_of(mine) is None


def test_backward_reads_a_buffer_as_it_was_before_it_was_written_to() -> None:
    """Where plain torch.compile reads it after."""
    torch.manual_seed(0)
    model = RunningMean()
    batch = torch.randn(8, 4)
    expected = trace(model, model, batch)
    mine = fitted(RunningMean(), 2**30)
    mine.load_state_dict({**model.state_dict(), "mean": torch.ones(4)})
    for one, other in zip(trace(mine, mine, batch), expected, strict=True):
        assert one is not None
        assert other is not None
        torch.testing.assert_close(one, other)


def test_nothing_that_reads_a_buffer_runs_again_once_it_was_written_to() -> None:
    """At the least budget, where all runs again that may."""
    case = MODELS["running_mean"]()
    plain = copy.deepcopy(case)
    expected = trace(plain.model, lambda *batch: plain.loss(plain.model(*batch)), *case.args)
    with pytest.raises(lowtide.BudgetTooSmall) as refused:
        fitted(case.model, 1000)(*case.args)
    mine = fitted(case.model, refused.value.needed)
    for one, other in zip(trace(mine, lambda *batch: case.loss(mine(*batch)), *case.args), expected, strict=True):
        if one is not None and other is not None:
            torch.testing.assert_close(one, other)
    assert plan_of(mine).reruns > 0


def test_graphs_of_a_broken_model_share_one_budget() -> None:
    torch.manual_seed(0)
    model = Broken()
    batch = torch.randn(512, 32)
    plain = copy.deepcopy(model)
    compiled = torch.compile(plain, dynamic=False)
    expected, plain_peak = trace(plain, compiled, batch), measured(plain, compiled, batch)
    budget = int(0.8 * plain_peak)
    mine = fitted(model, budget)
    assert same(trace(mine, mine, batch), expected)
    assert plan_of(mine).reruns > 0
    assert measured(mine, mine, batch) <= budget
    assert plan_of(mine).total <= budget


def test_cuda_graphs_are_refused_by_name() -> None:
    cuda_graphs = torch._inductor.config.patch({"triton.cudagraphs": True})
    with cuda_graphs, pytest.raises(lowtide.LowtideError, match="max-autotune-no-cudagraphs"):
        lowtide.fit(nn.Linear(4, 4), memory_budget="1MiB", backend="inductor")
