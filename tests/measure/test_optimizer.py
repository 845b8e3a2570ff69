"""What an optimizer is said to need, against what it takes when it steps on real tensors, to the byte."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.optim.optimizer as torch_optimizer
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.optim.optimizer import register_optimizer_step_pre_hook

from lowtide.errors import UnsupportedModel
from lowtide.measure.live import LiveBytes, storage_bytes, tensors_of
from lowtide.measure.optimizer import OptimizerNeed, state_bytes


class Lion(torch.optim.Optimizer):
    """Written by hand as users do: own constructor arguments, temporaries in a loop, attributes of its own."""

    def __init__(self, network: nn.Module, *, rate: float) -> None:
        super().__init__(list(network.parameters()), {"rate": rate})
        self.scale = torch.full((5,), 0.5)
        self.calls = 0
        self.average_of = self._average_of

    def _average_of(self, parameter: torch.Tensor) -> torch.Tensor:
        state = self.state[parameter]
        if not state:
            state["average"] = torch.zeros_like(parameter) * self.scale[0]
        return state["average"]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        self.calls += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                average = self.average_of(parameter)
                update = (average * 0.9 + parameter.grad * 0.1).sign()
                parameter.sub_(update * self.scale.mean(), alpha=group["rate"])
                average.lerp_(parameter.grad, 0.01)


class Staged(torch.optim.Optimizer):
    """Takes so many copies of each parameter at once: making its state, in early steps, in later ones."""

    def __init__(self, parameters: Iterable[nn.Parameter], making: int, early: int, late: int) -> None:
        super().__init__(parameters, {})
        self.making, self.early, self.late = making, early, late

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if not self.state[parameter]:
                    self.state[parameter]["step"] = torch.zeros((), dtype=torch.int64)
                    [parameter.clone() for _ in range(self.making)]
                self.state[parameter]["step"] += 1
                copies = self.late if self.state[parameter]["step"].item() > 5 else self.early
                [parameter.clone() for _ in range(copies)]


class Scheduled(torch.optim.Optimizer):
    """Looks its rate up by step count, in a short table."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        for group in self.param_groups:
            count = group.setdefault("count", torch.zeros((), dtype=torch.int64))
            count += 1
            for parameter in group["params"]:
                parameter.sub_(parameter.grad * (0.1, 0.01, 0.001)[min(count.item() - 1, 9)])


class Decayed(torch.optim.SGD):
    """Steps by its parent's step."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.copy_(parameter * 0.99)
        super().step(closure)


class Watcher:
    """Holds what cannot be copied, and is told of steps."""

    def __init__(self, told: list[str]) -> None:
        self.told, self.lock = told, threading.Lock()

    def note(self, *_: Any) -> None:
        with self.lock:
            self.told.append("own")


class Refiner(torch.optim.Optimizer):
    """Makes a tensor whose shape depends on its gradient."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.view(-1)[parameter.grad.view(-1).nonzero()] = 0


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, 50), nn.Linear(50, 70), nn.Conv2d(3, 8, 3), nn.LayerNorm(90))


def _measured(
    optimizer: torch.optim.Optimizer, *, unused: Iterable[torch.Tensor] = (), steps: int = 8
) -> OptimizerNeed:
    """Steps for real, several times, since some optimizers change their way after a few."""
    idle = [id(parameter) for parameter in unused]
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad and id(parameter) not in idle:
                parameter.grad = torch.randn_like(parameter)
    peak = 0
    for _ in range(steps):
        with LiveBytes("cpu", holding=[optimizer]) as live:
            optimizer.step()
        peak = max(peak, live.peak - storage_bytes(tensors_of([optimizer]), "cpu"))
    return OptimizerNeed(storage_bytes(tensors_of(list(optimizer.state.values())), "cpu"), peak)


CASES: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "foreach": True, "weight_decay": 0.1}),
    ("SGD", {"momentum": 0.9, "fused": True}),
    ("Adam", {}),
    ("Adam", {"foreach": True}),
    ("Adam", {"fused": True}),
    ("Adam", {"amsgrad": True, "foreach": True}),
    ("Adam", {"lr": torch.tensor(1e-3)}),
    ("AdamW", {}),
    ("AdamW", {"foreach": True, "maximize": True}),
    ("AdamW", {"fused": True}),
    ("Adagrad", {}),
    ("Adagrad", {"foreach": True}),
    ("RMSprop", {"centered": True, "momentum": 0.9}),
    ("RMSprop", {"foreach": True}),
    ("Adafactor", {}),
    ("Adafactor", {"foreach": True}),
    ("NAdam", {}),
    ("NAdam", {"foreach": True}),
    ("Adafactor", {"lr": torch.tensor(1e-3)}),
    ("RAdam", {}),
    ("RAdam", {"foreach": True}),
    ("Adamax", {}),
    ("Adadelta", {"foreach": True}),
    ("Rprop", {}),
    ("Rprop", {"lr": torch.tensor(1e-3)}),
    ("Muon", {}),
]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_to_the_byte(name: str, options: dict[str, Any]) -> None:
    parameters: Any = [p for p in _model().parameters() if p.ndim == 2 or name != "Muon"]
    optimizer = getattr(torch.optim, name)(parameters, **{"lr": 1e-3, **options})
    assert state_bytes(optimizer) == _measured(optimizer)


def test_by_hand() -> None:
    """Adam on one weight of 4,000 bytes: two averages and a step count; sqrt, then its quotient, then the product."""
    weight = nn.Parameter(torch.ones(1000))
    assert state_bytes(torch.optim.Adam([weight], foreach=False)).state == 2 * 4000 + 4
    assert state_bytes(torch.optim.Adam([weight], foreach=False)).step_peak == 2 * 4000
    assert state_bytes(torch.optim.SGD([weight], lr=1)) == OptimizerNeed(0, 0)


def test_an_optimizer_written_by_hand() -> None:
    optimizer = Lion(_model(), rate=1e-3)
    need = state_bytes(optimizer)
    assert optimizer.calls == 0
    assert need == _measured(optimizer)


@pytest.mark.parametrize("copies", [(3, 1, 1), (1, 3, 1), (1, 1, 3)])
def test_the_most_of_the_first_the_early_and_the_late_steps(copies: tuple[int, int, int]) -> None:
    weight = nn.Parameter(torch.ones(1000))
    assert state_bytes(Staged([weight], *copies)) == OptimizerNeed(8, 3 * 4000) == _measured(Staged([weight], *copies))


def test_numbers_out_of_range_are_not_the_last_word() -> None:
    optimizer = Scheduled([nn.Parameter(torch.ones(1000))], {})
    assert state_bytes(optimizer) == OptimizerNeed(0, 4000 + 8)
    assert "count" not in optimizer.param_groups[0]


def test_an_optimizer_that_steps_by_its_parent() -> None:
    optimizer = Decayed(_model().parameters(), lr=1e-3, momentum=0.9)
    assert state_bytes(optimizer) == _measured(optimizer)


def test_groups_frozen_parameters_and_parameters_without_gradients() -> None:
    model = _model()
    first, second, third, fourth = model.children()
    first.requires_grad_(False)
    groups = [
        {"params": list(first.parameters()) + list(second.parameters()), "weight_decay": 0.1, "amsgrad": True},
        {"params": list(third.parameters()), "foreach": True},
        {"params": list(fourth.parameters()), "fused": True},
    ]
    optimizer = torch.optim.AdamW(groups)
    idle = [second.bias, fourth.weight]
    everything, need = state_bytes(optimizer), state_bytes(optimizer, unused=idle)
    assert need.state < everything.state
    assert need == _measured(optimizer, unused=idle)
    assert everything == _measured(optimizer)  # Now with gradients everywhere; the state made before is still there.


def test_other_dtypes_and_layouts() -> None:
    parameters = [
        nn.Parameter(torch.randn(10, 10, dtype=torch.bfloat16)),
        nn.Parameter(torch.randn(4, 6, 5, 5).to(memory_format=torch.channels_last)),
        nn.Parameter(torch.randn(7, 9).t()),
        nn.Parameter(torch.randn(3, dtype=torch.float64)),
    ]
    for foreach in (False, True):
        optimizer = torch.optim.AdamW(parameters, foreach=foreach)
        assert state_bytes(optimizer) == _measured(optimizer)


def test_state_that_is_there_already() -> None:
    optimizer = torch.optim.Adam(_model().parameters())
    need = state_bytes(optimizer)
    assert need == _measured(optimizer) == state_bytes(optimizer)


def test_state_of_other_bytes_than_the_first_step_makes() -> None:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    bias = model[0].bias
    optimizer.state[bias]["momentum_buffer"] = torch.zeros_like(bias, dtype=torch.float64)
    need = state_bytes(optimizer)
    assert need == _measured(optimizer)
    assert need.state == sum(p.nbytes for p in model.parameters()) + bias.nbytes


def test_the_rule_that_chooses_foreach_is_asked_about_the_real_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA foreach is the default. Here the CPU is made to be such a device; a fake's own type would say no."""
    model = _model()
    loop = state_bytes(torch.optim.Adam(model.parameters()))
    monkeypatch.setattr(torch_optimizer, "_get_foreach_kernels_supported_devices", lambda: ["cpu"])
    optimizer = torch.optim.Adam(model.parameters())
    need = state_bytes(optimizer)
    assert need == state_bytes(torch.optim.Adam(model.parameters(), foreach=True)) != loop
    assert need == _measured(optimizer)
    assert FakeTensor not in torch_optimizer._foreach_supported_types


def test_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU is needed to be asked about one: the rule for it is taken, and its allocator's 512 bytes.

    Four weights of 4,000 bytes take 4,096 each. By default the foreach kernels, with a temporary for each weight;
    step counts are on the CPU. Fused, no temporary; step counts on the GPU, 512 bytes each.
    """
    monkeypatch.setattr(torch_optimizer, "_foreach_supported_types", [nn.Parameter, FakeTensor])
    with FakeTensorMode():
        weights = [nn.Parameter(torch.empty(1000, device="cuda")) for _ in range(4)]
        assert state_bytes(torch.optim.AdamW(weights)) == OptimizerNeed(8 * 4096, 4 * 4096)
        assert state_bytes(torch.optim.AdamW(weights, foreach=False)) == OptimizerNeed(8 * 4096, 3 * 4096)
        assert state_bytes(torch.optim.AdamW(weights, fused=True)) == OptimizerNeed(8 * 4096 + 4 * 512, 0)


def test_the_caller_keeps_everything_as_it_was() -> None:
    """Parameters, gradients, state, options, attributes and random state; hooks and schedulers do not notice."""
    called: list[str] = []
    model = _model()
    optimizer = Lion(model, rate=1e-3)
    decayed = Decayed(model.parameters(), lr=1e-3)
    for each in (optimizer, decayed):
        each.register_step_pre_hook(Watcher(called).note)
        each.register_step_post_hook(lambda *_: called.append("own"))
    handle = register_optimizer_step_pre_hook(lambda *_: called.append("global"))
    scheduler = torch.optim.lr_scheduler.LambdaLR(torch.optim.AdamW(model.parameters()), lambda _: 0.5)
    try:
        for each in (optimizer, decayed, scheduler.optimizer):
            for stepped in (False, True):
                if stepped:
                    _measured(each, steps=2)
                called.clear()
                attributes = set(vars(each))
                versions = [tensor._version for tensor in tensors_of([each])]
                identities = [id(tensor) for tensor in tensors_of([each])]
                before = copy.deepcopy([list(tensors_of([each])), each.state_dict(), torch.get_rng_state()])
                state_bytes(each)
                after = [list(tensors_of([each])), each.state_dict(), torch.get_rng_state()]
                torch.testing.assert_close(after, before, rtol=0, atol=0)
                assert [tensor._version for tensor in tensors_of([each])] == versions
                assert [id(tensor) for tensor in tensors_of([each])] == identities
                assert set(vars(each)) == attributes
                assert called == []
                each.step()
                assert "global" in called
    finally:
        handle.remove()
    assert optimizer.calls == 4


def test_nothing_is_allocated() -> None:
    """A gigabyte of parameters as views of one element: a copy of any would show."""
    weight = nn.Parameter(torch.zeros(1).expand(1 << 28))
    with LiveBytes("cpu") as live:
        assert state_bytes(torch.optim.AdamW([weight], foreach=False)).state >= 2 << 30
    assert live.peak < 1 << 10


def test_what_cannot_be_known_is_refused_by_name() -> None:
    parameters = list(_model().parameters())
    with pytest.raises(UnsupportedModel, match=r"torch\.optim\.lbfgs\.LBFGS .*closure"):
        state_bytes(torch.optim.LBFGS(parameters))
    with pytest.raises(UnsupportedModel, match=r"Refiner .*nonzero"):
        state_bytes(Refiner(parameters))
    with pytest.raises(UnsupportedModel, match="SparseAdam does not support dense gradients"):
        state_bytes(torch.optim.SparseAdam(parameters))


def test_a_way_not_taken_yet_counts() -> None:
    """ASGD begins to average after `t0` steps; what it needs then is said from the start."""
    parameters = list(_model().parameters())
    late, early = torch.optim.ASGD(parameters), torch.optim.ASGD(parameters, t0=0)
    need = state_bytes(late)
    assert need.step_peak > _measured(late).step_peak
    assert need == state_bytes(early) == _measured(early)
