"""Models in which tracing, views or attributes once changed a bit or hid bytes: exact, and inside the budget."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint_sequential

import lowtide
from lowtide.measure.live import LiveBytes
from test_uses import Block, Fit, batch, check_exact, fitted, least, module, perceptron, step, tensors


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def sequences() -> Tensor:
    return torch.randn(4, 10, 16, generator=torch.Generator().manual_seed(0))


def exact(build: Callable[[], nn.Module], x: Tensor, loss: Callable[[Any], Tensor], *, reruns: bool = True) -> None:
    """Two steps of the model leave the same bits with and without a plan."""

    def use(fit: Fit) -> list[Any]:
        torch.manual_seed(0)
        model = fit(build(), x)
        torch.manual_seed(3)
        found: list[Any] = []
        for _ in range(2):
            model.zero_grad()
            output = model(x)
            loss(output).backward()
            found += [output, *tensors(model)]
        return found

    check_exact(use, reruns=reruns)


def within(model: nn.Module, x: Tensor, calls: int = 3) -> None:
    """Every step stays within what was promised, at the least budget and with all kept."""
    budget = least(model, x)
    for options in ({"memory_budget": budget}, {"memory_budget": "1TB", "planner": "keep_all"}):
        torch._dynamo.reset()
        lowtide.fit(model, **options)
        for _ in range(calls):
            model.zero_grad()
            with LiveBytes("cpu", holding=[model, x]) as live:
                model(x).sum().backward()
            assert live.peak <= fitted(model).plan.total


def squares(output: Any) -> Tensor:
    return sum(tensor.square().mean() for tensor in (output if isinstance(output, tuple) else (output,)))


def test_masks_of_transposed_tensors_are_drawn_in_the_order_of_memory() -> None:
    exact(lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), sequences(), squares)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(16, 5, num_layers=2, bidirectional=True, batch_first=True, dropout=0.2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.gru(x)


def test_a_gru_on_slices_that_are_not_dense() -> None:
    x = torch.randn(64, 2, 16, generator=torch.Generator().manual_seed(0))
    exact(Recurrent, x, squares, reruns=False)


def views_before(self: Any, x: Tensor) -> Any:
    y = self.body(x)
    return y[:, :4], y.t(), self.head(y), self.head(y.sin())


def views_between(self: Any, x: Tensor) -> Any:
    y = self.body(x)
    first, flat = self.head(y), y.view(-1)
    return y, flat, first, self.head(y.sin()), y[0]


def views_after(self: Any, x: Tensor) -> Any:
    y = self.body(x)
    return self.head(y), self.head(y * 2), *y.split([3, 5], dim=1), y.view(-1)


@pytest.mark.parametrize("forward", [views_before, views_between, views_after])
def test_gradients_of_outputs_that_share_memory_add_up_in_order(forward: Callable[..., Any]) -> None:
    exact(lambda: module(forward), batch(), squares)


def test_numpy_is_numpy() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.body(x)
        return self.head(y * float(y.detach().numpy().mean()))

    exact(lambda: module(forward, dropout=0.0), batch(), squares, reruns=False)


# Bytes


def test_constants_of_the_graph_count() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = perceptron()

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x * torch.tensor([1.0, 2.0] * 8) + torch.tensor([1.0, 2.0] * 8)).exp()

    within(Scaled(), batch())
    static = sum(4 * p.numel() for p in Scaled().parameters()) + 64 * 16 * 4
    assert lowtide.plan(Scaled(), batch(), memory_budget="1TB").static == static + 16 * 4
    model = lowtide.fit(Scaled(), memory_budget="1TB")
    for rows in (64, 32):
        step(model, batch(rows))
    assert [tuple(constant.shape) for constant in fitted(model).constants.values()] == [(16,)]


@pytest.mark.parametrize("forward", ["attribute", "hook"])
def test_tensors_kept_in_attributes_count_in_the_next_step(forward: str) -> None:
    """The first step cannot know of them; the second is planned again, with them counted."""

    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = perceptron()
            if forward == "hook":
                nn.utils.spectral_norm(self.body[3])

        def forward(self, x: Tensor) -> Tensor:
            y = self.body(x)
            if forward == "attribute":
                self.last = [y.detach() * 2]
            return y.exp()

    torch.manual_seed(0)
    model, x = Keeps(), batch(256)
    lowtide.fit(model, memory_budget="1TB")
    step(model, x)
    first = fitted(model).plan.static
    step(model, x)
    kept = {"attribute": 256 * 8 * 4, "hook": 16 * 16 * 4}[forward]
    assert fitted(model).plan.static - first >= kept
    assert fitted(model).plan.static - first <= kept + sum(4 * p.numel() for p in model.parameters())
    plan = fitted(model).plan
    step(model, x)
    assert fitted(model).plan is plan


def test_a_mean_of_squares_outside_has_room() -> None:
    model, x = nn.Linear(16, 64), batch(256)
    budget = least(model, x)
    lowtide.fit(model, memory_budget=budget)
    for _ in range(2):
        model.zero_grad()
        with LiveBytes("cpu", holding=[model, x]) as live:
            step(model, x)
        assert live.peak <= budget


def test_gradients_made_outside_the_graphs_count() -> None:
    class Scripted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = Block()
            self.inner = torch.jit.script(nn.Sequential(nn.Linear(16, 256), nn.Linear(256, 16)))

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(self.first(x))

    torch.manual_seed(0)
    model, x = Scripted(), batch(8)
    assert least(model, x) >= 2 * sum(4 * p.numel() for p in model.parameters())


# What cannot be kept is said


def test_a_model_whose_part_is_fitted_is_refused() -> None:
    model = nn.Sequential(perceptron(), nn.Linear(8, 4))
    lowtide.fit(model[0], memory_budget="1TB")
    with pytest.raises(lowtide.LowtideError, match="part '0'"):
        lowtide.fit(model, memory_budget="1TB")
    lowtide.unfit(model[0])
    lowtide.fit(model, memory_budget="1TB")


def test_a_checkpoint_outside_the_graphs_is_refused_by_name() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.head(checkpoint_sequential(self.body, 2, x, use_reentrant=False))

    with pytest.raises(lowtide.UnsupportedModel, match="left a checkpoint"):
        lowtide.fit(module(forward), memory_budget="1TB")(batch())


@pytest.mark.parametrize("way", ["plain", "two forwards", "retained", "late gradients", "accumulating"])
def test_steps_that_hold_more_than_planned_are_told_of_once(way: str, caplog: pytest.LogCaptureFixture) -> None:
    model = lowtide.fit(perceptron(), memory_budget="1TB")
    with caplog.at_level(logging.WARNING, "lowtide"):
        for _ in range(2):
            model.zero_grad()
            loss = model(batch()).sum()
            if way == "two forwards":
                loss = loss + model(batch(seed=2)).sum()
            if way == "late gradients":
                functional.linear(batch(), model[0].weight).sum().backward()
            if way == "accumulating":
                loss.backward()
                loss = model(batch()).sum()
            loss.backward(retain_graph=way == "retained")
            del loss
    said = [line for line in caplog.messages if "more memory than was planned" in line]
    expected = {"two forwards": "another's backward", "retained": "retain_graph", "late gradients": "gradients were"}
    assert len(said) == (way in expected)
    assert all(expected[way] in line for line in said)
