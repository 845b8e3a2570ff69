"""A plan's promise beside what its steps took, and what follows where they took more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide
from lowtide import api
from lowtide.check import Measurement
from lowtide.errors import BudgetTooSmall, LowtideError
from lowtide.measure.gauge import CudaGauge
from training import case_of, optimizer_of, train


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def blocks() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(6)))


def step(model: nn.Module, rows: int = 64) -> Tensor:
    model.zero_grad()
    loss: Tensor = model(torch.ones(rows, 32)).square().mean()
    loss.backward()
    return loss


@pytest.mark.parametrize("name", ["mlp", "resnet"])
def test_promises_are_checked_where_asked_for(name: str) -> None:
    """Three steps of a plan are measured, are as they would be unmeasured, and keep to what was promised."""
    plain_case = case_of(name)
    plain = train(plain_case, optimizer_of(plain_case))
    case = case_of(name)
    optimizer = optimizer_of(case)
    total = lowtide.plan(
        case.model, lowtide.Batch(*case.args, **case.kwargs), memory_budget="1TB", optimizer=optimizer
    ).total
    lowtide.fit(case.model, memory_budget=total, optimizer=optimizer, check=True, planner="greedy")
    assert train(case, optimizer).differences(plain) == []
    found = lowtide.check(case.model)
    assert found.kept
    assert found.excess == 0
    assert len(found.steps) == 3
    assert all(0.7 * found.plan.total < measured.total <= found.plan.total for measured in found.steps)
    assert all(measured.ns > 0 for measured in found.steps)
    first, last = found.steps[0], found.steps[-1]
    assert first.absent > 0
    assert last.absent == 0
    assert f"The budget of {lowtide.budget.show(total)} was kept" in str(found)


class Broken(nn.Module):
    """Two graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = blocks(), blocks()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x)


def test_a_model_in_several_graphs_is_checked_from_its_second_step_on() -> None:
    """The first call comes before the plan."""
    model = lowtide.fit(Broken(), memory_budget="1MiB", check=True)
    step(model)
    with pytest.raises(LowtideError, match="no step"):
        lowtide.check(model)
    for _ in range(4):
        step(model)
    found = lowtide.check(model)
    assert len(found.steps) == 3
    assert found.kept
    assert min(measured.total for measured in found.steps) > 0.7 * found.plan.total


class Hungry:
    """A gauge that sees every step take so much more than its plan promised."""

    def __init__(self, model: nn.Module, hidden: Callable[[], int]) -> None:
        self.model, self.hidden, self.begun = model, hidden, 0

    def begin(self) -> None:
        self.begun += 1

    @contextmanager
    def forward(self, inputs: Any) -> Iterator[None]:
        yield

    backward = forward

    def read(self, absent: int) -> Measurement:
        fitted = self.model._compiled_call_impl
        taken = fitted.plan.total - fitted.watch.margin + self.hidden()
        return Measurement(taken, taken, 0, 2 * taken, 1000)


@pytest.fixture
def hungry(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[Hungry]]:
    """Every model that is fitted from now on takes so many bytes that nobody knows of."""
    made: list[Hungry] = []

    def install(hidden: int) -> list[Hungry]:
        def gauge_of(model: nn.Module, optimizer: Any, asked: Any) -> Hungry:
            made.append(Hungry(model, lambda: hidden))
            return made[-1]

        monkeypatch.setattr(api, "gauge_of", gauge_of)
        return made

    return install


def middle() -> tuple[int, int]:
    """A budget between the least and the plain step's, and the least."""
    curve = lowtide.frontier(blocks(), torch.ones(64, 32), points=4)
    return (curve.least + curve.plain) // 2, curve.least


def test_a_missed_budget_is_planned_again_and_kept_from_then_on(
    hungry: Callable[[int], list[Hungry]], caplog: pytest.LogCaptureFixture
) -> None:
    budget, _ = middle()
    gauges = hungry(20_000)
    model = lowtide.fit(blocks(), memory_budget=budget)
    step(model)
    fitted = model._compiled_call_impl
    first = fitted.plan
    assert lowtide.check(model).excess == 20_000
    assert not lowtide.check(model).kept
    for _ in range(8):
        step(model)
        assert fitted.plan.total - fitted.watch.margin + 20_000 <= budget
    assert fitted.plan.runs != first.runs
    assert fitted.plan.total <= budget
    assert fitted.watch.margin == 20_000
    found = lowtide.check(model)
    assert (len(found.steps), found.kept, found.excess) == (3, True, 0)
    assert gauges[0].begun == 1 + 3
    said = [r.getMessage() for r in caplog.records if "planning again" in r.getMessage()]
    assert len(said) == 1
    assert "19.53 KiB left free" in said[0]


def test_a_step_above_its_promise_and_within_its_budget_is_left_alone(hungry: Callable[[int], list[Hungry]]) -> None:
    hungry(1000)
    model = lowtide.fit(blocks(), memory_budget="1GiB")
    step(model)
    first = model._compiled_call_impl.plan
    step(model)
    assert model._compiled_call_impl.plan is first
    found = lowtide.check(model)
    assert (found.kept, found.excess) == (True, 1000)


def test_what_can_no_longer_fit_is_refused_in_the_next_step(hungry: Callable[[int], list[Hungry]]) -> None:
    """And the error names what would work."""
    _, least = middle()
    hungry(20_000)
    model = lowtide.fit(blocks(), memory_budget=least)
    step(model)
    with pytest.raises(BudgetTooSmall) as error:
        step(model)
    assert error.value.needed == least + 20_000
    lowtide.fit(model, memory_budget=error.value.needed)
    for _ in range(5):
        step(model)
    assert lowtide.check(model).kept


def test_a_plan_that_was_given_is_kept(hungry: Callable[[int], list[Hungry]], caplog: pytest.LogCaptureFixture) -> None:
    budget, _ = middle()
    hungry(20_000)
    plan = lowtide.plan(blocks(), torch.ones(64, 32), memory_budget=budget)
    model = lowtide.apply(blocks(), plan)
    for _ in range(5):
        step(model)
    assert model._compiled_call_impl.plan.runs == plan.runs
    assert "allowed" in caplog.text
    assert "planning again" not in caplog.text


def test_only_steps_that_a_plan_is_for_are_held_against_it(hungry: Callable[[int], list[Hungry]]) -> None:
    """Another shape in between has a plan of its own."""
    gauges = hungry(0)
    model = lowtide.fit(blocks(), memory_budget="1GiB")
    for rows in (64, 32, 64, 32, 64, 32, 64):
        step(model, rows)
    assert lowtide.check(model).plan is model._compiled_call_impl.plan
    assert len(lowtide.check(model).steps) == 3
    assert gauges[0].begun == 1 + 3


def test_a_call_without_backward_is_no_step(hungry: Callable[[int], list[Hungry]]) -> None:
    hungry(0)
    model = lowtide.fit(blocks(), memory_budget="1GiB")
    model(torch.ones(64, 32))
    with pytest.raises(LowtideError, match="no step"):
        lowtide.check(model)


def test_what_is_not_there_to_check_is_refused() -> None:
    with pytest.raises(LowtideError, match="not fitted"):
        lowtide.check(blocks())
    model = lowtide.fit(blocks(), memory_budget="1GiB")
    if next(model.parameters()).device.type == "cpu":
        step(model)
        with pytest.raises(LowtideError, match="check=True"):
            lowtide.check(model)


def test_a_table() -> None:
    bound = lowtide.Bound(0, "")
    plan = lowtide.Plan((), 100 << 20, 60 << 20, 2_000_000, "best", "", "", bound, 40 << 20, costs="measured on a GPU")
    steps = Measurement(90 << 20, 90 << 20, 8 << 20, 120 << 20, 2_100_000), Measurement(101 << 20, 0, 0, 0, 1_900_000)
    found = lowtide.Check(plan, steps)
    assert str(found).splitlines() == [
        "                  peak         off     reserved  fragmented         time         off",
        " promised   100.00 MiB                                          2.000 ms",
        "   step 1    98.00 MiB     -2.00 %   120.00 MiB     25.00 %     2.100 ms     +5.00 %",
        "   step 2   101.00 MiB     +1.00 %                              1.900 ms     -5.00 %",
        "The budget of 140.00 MiB was kept. Promised times are measured on a GPU.",
    ]
    assert found.excess == 1 << 20


def test_a_gpus_gauge_reads_the_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peaks begin anew with the step; the optimizer's step counts for the peak and not for what is within."""
    peaks = iter([5, 9, 12])
    asked: list[str] = []

    class Event:
        def __init__(self, **_: Any) -> None:
            pass

        def record(self, _: Any) -> None:
            asked.append("record")

        def synchronize(self) -> None:
            asked.append("wait")

        def elapsed_time(self, _: Any) -> float:
            return 1.5

    for name, stand_in in {
        "reset_peak_memory_stats": lambda _: asked.append("reset"),
        "memory_stats_as_nested_dict": lambda _: {"allocated_bytes": {"all": {"peak": next(peaks)}}},
        "max_memory_reserved": lambda _: 20,
        "current_stream": lambda _: None,
        "Event": Event,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    gauge = CudaGauge(torch.device("cuda", 0))
    gauge.begin()
    with gauge.forward(None):
        pass
    with gauge.backward(None):
        pass
    assert gauge.read(4) == Measurement(peak=12, within=9, absent=4, reserved=20, ns=1_500_000)
    assert asked == ["reset", "record", "record", "wait"]
    assert gauge_total() == 13


def gauge_total() -> int:
    """What is within, and what was absent, at once."""
    return Measurement(peak=12, within=9, absent=4, reserved=20, ns=0).total
