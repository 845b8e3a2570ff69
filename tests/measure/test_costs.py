"""What a captured graph costs: each distinct call measured once, and nothing estimated in silence."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

import lowtide
from lowtide import api, referee
from lowtide.errors import LowtideError
from lowtide.fitted import Settings, capture_call
from lowtide.measure.arguments import Arguments
from lowtide.measure.cache import Cache
from lowtide.measure.clock import Cost, CpuClock
from lowtide.measure.costs import Estimated, Measured
from lowtide.measure.signature import signature
from lowtide.planners import keep_all
from lowtide.planning import Reached
from lowtide.progress import Progress
from training import batch_of
from zoo import MODELS

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    torch._dynamo.reset()


@dataclass
class Counting:
    """A clock that calls each call once, and answers 1000 ns and so much workspace."""

    workspace: int = 0
    free: int | None = None
    results: list[Any] = field(default_factory=list)
    device: torch.device = CPU
    name: str = "a clock"

    def machine(self) -> str:
        return "a machine"

    def cost(self, call: Callable[[], Any], seconds: float) -> Cost:
        self.results.append(call())
        return Cost(1000, self.workspace)

    def room(self) -> int | None:
        return self.free

    def alive(self) -> bool:
        return True

    def clean(self) -> None:
        pass


def reached(model: nn.Module, x: Tensor, clock: Any, path: Path) -> Reached:
    def plan(_: Reached) -> lowtide.Plan:
        raise AssertionError

    price = Measured(clock, cache=Cache(path / "c.sqlite"))
    return capture_call(model, (x,), {}, Settings(plan, keep_all.solve, None, None, 1, price=price))


def layers(count: int) -> nn.Module:
    return nn.Sequential(*(layer for _ in range(count) for layer in (nn.Linear(16, 16), nn.Tanh())))


def test_every_distinct_call_is_measured_once(tmp_path: Path) -> None:
    """Twenty equal layers are as many distinct calls as four, and a second time there are none."""
    few, many, again = Counting(), Counting(), Counting()
    reached(layers(4), torch.randn(8, 16), few, tmp_path / "few")
    found = reached(layers(20), torch.randn(8, 16), many, tmp_path)
    assert 0 < len(many.results) == len(few.results) < 20
    assert reached(layers(20), torch.randn(8, 16), again, tmp_path).joined == found.joined
    assert again.results == []
    (graph,) = found.graphs
    for op, action in zip(found.joined.ops, graph.actions, strict=True):
        assert op.ns == (1000 if signature(action) else 0)
    assert found.costs == "measured on a clock"


def test_another_shape_is_another_call(tmp_path: Path) -> None:
    reached(layers(2), torch.randn(8, 16), Counting(), tmp_path)
    clock = Counting()
    reached(layers(2), torch.randn(9, 16), clock, tmp_path)
    assert len(clock.results) > 3


def test_the_referee_counts_measured_workspace(tmp_path: Path) -> None:
    """A mebibyte in every call is a mebibyte more at the peak."""
    x = torch.randn(8, 16)
    without = reached(layers(4), x, Counting(), tmp_path / "without").joined
    program = reached(layers(4), x, Counting(workspace=2**20), tmp_path).joined
    runs = range(len(program.ops))
    assert referee.run(program, runs).peak - referee.run(without, runs).peak >= 2**20
    assert program.fingerprint == without.fingerprint


class Silent(nn.Module):
    """Calls a custom operator, which counts its calls, and draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(torch.ops.measured.counted(self.layer(x)), 0.5)


CALLS: list[int] = []


@torch.library.custom_op("measured::counted", mutates_args=())
def counted(x: Tensor) -> Tensor:
    CALLS.append(1)
    return x.clone()


counted.register_fake(torch.empty_like)
counted.register_autograd(lambda _, gradient: gradient * 2)


def test_what_may_hide_state_is_estimated_by_name(tmp_path: Path) -> None:
    """A custom operator is not called, and the generator stands where it stood."""
    CALLS.clear()
    model, x = Silent(), torch.randn(8, 16)
    before = torch.get_rng_state()
    found = reached(model, x, Counting(), tmp_path)
    assert CALLS == []
    assert torch.equal(before, torch.get_rng_state())
    assert found.costs == "measured on a clock; estimated: measured.counted.default (it may hide state)"
    (op,) = [op for op in found.joined.ops if op.name == "measured.counted.default"]
    assert op.ns > 1000


def test_what_is_too_large_is_estimated_by_name(tmp_path: Path) -> None:
    clock = Counting(free=3 * 8 * 16 * 4)
    found = reached(layers(1), torch.randn(8, 16), clock, tmp_path)
    assert "aten.addmm.default (its tensors take" in found.costs
    assert "tanh" not in found.costs
    assert clock.results


def test_a_call_that_fails_is_estimated_by_name(tmp_path: Path) -> None:
    class Failing(Counting):
        def cost(self, call: Callable[[], Any], seconds: float) -> Cost:
            raise torch.OutOfMemoryError("no room\nat all")

    found = reached(layers(1), torch.randn(8, 16), Failing(), tmp_path)
    assert "aten.addmm.default (OutOfMemoryError: no room)" in found.costs


def test_a_device_that_is_lost_ends_it(tmp_path: Path) -> None:
    """An error after which the GPU takes no more calls is no reason to go on estimating."""

    class Lost(Counting):
        def cost(self, call: Callable[[], Any], seconds: float) -> Cost:
            raise torch.AcceleratorError("device-side assert triggered")

        def alive(self) -> bool:
            return False

    with pytest.raises(torch.AcceleratorError):
        reached(layers(1), torch.randn(8, 16), Lost(), tmp_path)


def test_progress_is_said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0, 5.0, 6.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    progress = Progress("counting", 100)
    with caplog.at_level(logging.INFO, "lowtide"):
        for done in (1, 50, 60):
            progress.at(done)
    assert [r.getMessage() for r in caplog.records] == ["lowtide: counting: 50 of 100, about 5 s left"]


@pytest.mark.parametrize("name", ["vit", "lstm", "llama", "unet"])
def test_all_of_a_real_step_is_measured(name: str) -> None:
    """Indices in range, workspaces made by the operators that want them: nothing is left to estimate."""
    case = MODELS[name]()
    plan = lowtide.plan(case.model, batch_of(case), memory_budget="1TB", planner="keep_all", costs="measured")
    assert plan.costs.startswith("measured on ")
    assert "estimated" not in plan.costs


def test_a_product_is_timed_as_long_as_it_takes() -> None:
    """Against a plain loop; both on a machine that may be busy."""
    x, y = torch.randn(2, 500, 500)
    found = CpuClock().cost(lambda: torch.mm(x, y), 0.2).ns
    times = []
    for _ in range(30):
        begun = time.perf_counter_ns()
        torch.mm(x, y)
        times.append(time.perf_counter_ns() - begun)
    assert 0.5 * min(times) < found < 3 * sorted(times)[15]


INDEXED: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "embedding": (lambda w, i: functional.embedding(i, w).sum(), (torch.randn(5, 3), torch.zeros(7, dtype=torch.long))),
    "gather": (lambda x, i: x.gather(1, i), (torch.randn(4, 6), torch.zeros(4, 3, dtype=torch.long))),
    "select": (lambda x, i: x.index_select(1, i), (torch.randn(4, 6), torch.zeros(9, dtype=torch.long))),
    "index": (lambda x, i, j: x[i, :, j], (torch.randn(4, 6, 3), *torch.zeros(2, 5, dtype=torch.long))),
    "loss": (functional.cross_entropy, (torch.randn(8, 10), torch.zeros(8, dtype=torch.long))),
    "dense loss": (functional.cross_entropy, (torch.randn(2, 5, 4, 4), torch.zeros(2, 4, 4, dtype=torch.long))),
    "scatter": (
        lambda x, i, y: x.scatter_add(0, i, y),
        (torch.randn(5, 3), torch.zeros(4, 3).long(), torch.randn(4, 3)),
    ),
    "pool": (lambda x: functional.max_pool2d(x, 2), (torch.randn(2, 3, 8, 8),)),
    "draw": (torch.bernoulli, (torch.rand(50),)),
    "entropy": (functional.binary_cross_entropy, (torch.rand(50), torch.rand(50))),
}


def calls_of(function: Callable[..., Any], inputs: tuple[Tensor, ...]) -> Iterator[fx.Node]:
    """The calls of a function and of its backward pass."""

    def both(*inputs: Tensor) -> Any:
        leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in inputs]
        out = function(*leaves).sum()
        wanted = [x for x in leaves if x.is_floating_point()]
        return torch.autograd.grad(out, wanted, allow_unused=True) if out.requires_grad else out

    for node in make_fx(both)(*inputs).graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            yield node


@pytest.mark.parametrize("name", INDEXED)
def test_indices_are_in_range_and_not_all_the_same(name: str) -> None:
    function, inputs = INDEXED[name]
    most = 0
    for node in calls_of(function, inputs):
        for seed in range(3):
            arguments = Arguments(CPU)
            arguments._generator.manual_seed(seed)
            args, kwargs = arguments.of(node)
            node.target(*args, **kwargs)
            most = max([most, *(int(x.max()) for x in args if isinstance(x, Tensor) and x.dtype is torch.long)])
    assert most > 0 or name in ("draw", "entropy", "index")


def test_tensors_lie_in_memory_as_they_did() -> None:
    """Strides, expanded ones too, types, and the distance from where vectors are read whole."""
    base = torch.randn(100)
    for like in (
        base[3:99].view(8, 12).t(),
        base[:5].expand(7, 5),
        torch.zeros(3, 4, dtype=torch.bool),
        torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.zeros(4, dtype=torch.float8_e4m3fn),
        torch.zeros(0, 4),
        torch.zeros(2, dtype=torch.uint64),
        torch.zeros((), dtype=torch.complex64),
    ):
        made = Arguments(CPU).like(like)
        assert (made.dtype, made.shape, made.stride()) == (like.dtype, like.shape, like.stride())
        assert made.storage_offset() * made.element_size() % 16 == like.storage_offset() * like.element_size() % 16


def test_the_same_tensor_twice_is_one_tensor() -> None:
    (node,) = [n for n in make_fx(lambda x: x * x)(torch.randn(3)).graph.nodes if n.op == "call_function"]
    (first, second), _ = Arguments(CPU).of(node)
    assert first is second


def test_costs_are_estimated_on_the_cpu_unless_asked_for() -> None:
    case = MODELS["mlp"]()
    plan = lowtide.plan(case.model, batch_of(case), memory_budget="1TB", planner="keep_all")
    assert plan.costs.startswith("estimated for cpu (roofline")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"costs": "guessed"}, 'costs are "measured" or "estimated"'),
        ({"costs": "measured", "device": "h100"}, "needs the device"),
        ({"device": "abacus"}, "is not known"),
        ({"device": {"name": "mine"}}, "is described by"),
        ({"device": lowtide.Device("m", "cuda", {8: 1, 4: 1, 2: 1, 1: 1}, 1, 1), "memory_budget": "80%"}, "in bytes"),
        pytest.param(
            {"device": "cuda"}, "there is none", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is")
        ),
    ],
)
def test_what_cannot_be_had_is_refused(options: dict[str, Any], words: str) -> None:
    case = MODELS["mlp"]()
    with pytest.raises(LowtideError, match=words):
        lowtide.plan(case.model, batch_of(case), **{"memory_budget": "1TB", **options})


def test_a_model_without_data_cannot_be_measured() -> None:
    with torch.device("meta"):
        model, x = nn.Linear(4, 4), torch.randn(2, 4)
    with pytest.raises(LowtideError, match="the model is on meta"):
        lowtide.plan(model, x, memory_budget="1TB", costs="measured")


def test_on_a_gpu_costs_are_measured_unless_estimates_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """And from elsewhere for the GPU that is here."""
    monkeypatch.setattr(api, "clock_of", lambda device: Counting(device=device, name="NVIDIA H200"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    gpu, meta = torch.device("cuda", 0), torch.device("meta")
    assert isinstance(api._price(gpu, None, None, None, None), Measured)
    assert isinstance(api._price(gpu, "estimated", None, None, None), Estimated)
    assert isinstance(api._price(meta, None, "cuda", None, None), Measured)
    assert isinstance(api._price(gpu, None, "a100", lowtide.device.A100, None), Estimated)
    assert api._target(meta, "cuda") is lowtide.device.H200
    with pytest.raises(LowtideError, match="needs the device"):
        api._price(gpu, "measured", "a100", lowtide.device.A100, None)
    with pytest.raises(LowtideError, match="planned for GPUs"):
        api._target(gpu, "cpu")


def test_fitting_measures_when_asked() -> None:
    case = MODELS["mlp"]()
    lowtide.fit(case.model, memory_budget="1TB", costs="measured", planner="keep_all")
    case.step()
    assert case.model._compiled_call_impl.plan.costs.startswith("measured on ")


def test_fit_measures_within_its_budget_and_plan_within_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int | None] = []
    monkeypatch.setattr(api, "_price", lambda *args: seen.append(args[-1]) or Estimated())
    model, x = nn.Linear(4, 1), torch.ones(2, 4)
    lowtide.fit(model, memory_budget=5000, max_shapes=1)
    lowtide.plan(model, x, memory_budget=5000)
    assert seen == [5000, None]
