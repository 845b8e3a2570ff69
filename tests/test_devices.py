"""Planning on one device for another: its kernels, its allocator's units, its times."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lowtide
from lowtide.fitted import Settings, capture_call
from lowtide.measure.roofline import H100
from lowtide.planners import keep_all
from lowtide.program import Program
from training import batch_of
from zoo import MODELS


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def program_for_h100(model: nn.Module, args: Any, kwargs: Any) -> Program:
    def plan(_: Any) -> Any:
        raise AssertionError

    return capture_call(model, args, kwargs, Settings(plan, keep_all.solve, None, None, 1, device=H100)).joined


@pytest.mark.parametrize(
    ("name", "kernels"),
    [("vit", {"_scaled_dot_product_efficient_attention"}), ("resnet", {"cudnn_batch_norm"}), ("mlp", set())],
)
def test_a_model_on_the_cpu_is_planned_with_the_kernels_of_a_gpu(name: str, kernels: set[str]) -> None:
    case = MODELS[name]()
    program = program_for_h100(case.model, case.args, case.kwargs)
    names = {op.name.split(".")[1] for op in program.ops if op.name.startswith("aten.")}
    assert kernels <= names
    assert not any("cpu" in each or "mkldnn" in each for each in names)
    assert all(value.bytes % 512 == 0 for value in program.values)


def test_a_model_without_data_and_one_on_the_cpu_are_one_step() -> None:
    case = MODELS["vit"]()
    there = program_for_h100(case.model, case.args, case.kwargs)
    torch._dynamo.reset()
    args = tuple(x.to("meta") for x in case.args)
    assert program_for_h100(case.model.to("meta"), args, case.kwargs).fingerprint == there.fingerprint


def test_a_faster_device_takes_less_time_and_the_same_memory() -> None:
    case = MODELS["vit"]()
    plans = {
        name: lowtide.plan(case.model, batch_of(case), memory_budget="80%", device=name, planner="keep_all")
        for name in ("4090", "l40s", "a100", "h100", "h200")
    }
    assert len({plan.total for plan in plans.values()}) == 1
    assert plans["h200"].time <= plans["h100"].time <= plans["a100"].time
    assert {plan.static + plan.budget for plan in plans.values()} == {
        int(0.8 * lowtide.device.DEVICES[name].memory) for name in plans
    }
    assert all(plans[name].costs == f"estimated for {name} (roofline)" for name in plans)


def test_a_table_of_figures_is_a_device() -> None:
    """A hundred times slower in everything takes a hundred times as long."""
    slow = {"name": "slow", "kind": "cpu", "bandwidth": 1e8, "launch": 0, "flops": dict.fromkeys((8, 4, 2, 1), 1e9)}
    fast = lowtide.Device("fast", "cpu", dict.fromkeys((8, 4, 2, 1), 1e11), 1e10, 0)
    case = MODELS["mlp"]()
    options = {"memory_budget": "1TB", "planner": "keep_all"}
    times = [lowtide.plan(case.model, batch_of(case), device=each, **options).time for each in (slow, fast)]
    assert times[0] == pytest.approx(100 * times[1], rel=0.01)


def test_tf32_counts_where_it_is_allowed() -> None:
    """A product in single precision is estimated by the units that eager PyTorch would use."""
    case = MODELS["mlp"]()
    fast = lowtide.Device("m", "cuda", dict.fromkeys((8, 4, 2, 1), 1e12), 1e15, 0, single=1e10)

    def time() -> int:
        return lowtide.plan(case.model, batch_of(case), memory_budget="1TB", device=fast, planner="keep_all").time

    plain = time()
    torch.set_float32_matmul_precision("high")
    try:
        assert plain > 50 * time()
    finally:
        torch.set_float32_matmul_precision("highest")
