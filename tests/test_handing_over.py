"""Gradients leave a planned backward pass as they are made, and autograd does with them what it always does."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import lowtide
from lowtide.capture import joint
from lowtide.measure.live import LiveBytes
from test_uses import Fit, assert_same, check_exact, fitted, least, plain, roomy, tensors

WIDTH, LAYERS = 64, 6


@pytest.fixture(autouse=True)
def _each_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(joint, "LEAST_HANDED_OVER", 1)
    monkeypatch.setattr(joint, "PIECES", 10**9)


class Deep(nn.Sequential):
    """Weights that outweigh activations."""

    def __init__(self, dropout: float = 0.1) -> None:
        torch.manual_seed(0)
        layers = ((nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(dropout)) for _ in range(LAYERS))
        super().__init__(*(layer for several in layers for layer in several))


def rows(count: int = 4, seed: int = 1) -> Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed))


def in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint, "LEAST_HANDED_OVER", 10**9)


def peak(model: nn.Module, x: Tensor) -> int:
    with LiveBytes("cpu", holding=[model, x]) as live:
        model(x).sum().backward()
    return live.peak


def test_gradients_that_are_added_up_are_not_held_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second micro-batch holds what was promised to the byte: one set of gradients, and the one being made."""
    model = roomy(Deep(), None)
    peaks = [peak(model, rows(seed=part)) for part in range(3)]
    promised = fitted(model).plan.total
    weights = 4 * sum(p.numel() for p in model.parameters())
    assert peaks[1] == peaks[2] <= promised <= peaks[1] + 2048
    assert peaks[1] < 2.5 * weights
    in_one(monkeypatch)
    torch._dynamo.reset()
    model = roomy(Deep(), None)
    assert [peak(model, rows(seed=part)) for part in range(2)][1] > 2.9 * weights


def test_adding_up_within_the_least_budget() -> None:
    model = Deep()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    budget = least(model, rows(64))
    lowtide.fit(model, memory_budget=budget)
    assert peak(model, rows(64)) <= budget == fitted(model).plan.total
    with pytest.raises(lowtide.BudgetTooSmall):
        lowtide.fit(model, memory_budget=budget - 1)(rows(64))


def stepping(model: nn.Module, seen: list[Tensor]) -> nn.Module:
    """The model with an optimizer for each weight, which steps as soon as the gradient is there, and lets it go."""
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def hook(p: Tensor) -> None:
        seen.append(p.grad.clone())
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)
    return model


def test_an_optimizer_that_steps_inside_backward_frees_gradients() -> None:
    def use(fit: Fit) -> list[Any]:
        seen: list[Tensor] = []
        model = fit(stepping(Deep(), seen), rows())
        torch.manual_seed(3)
        for part in range(2):
            model(rows(seed=part)).sum().backward()
        return [*seen, *tensors(model)]

    assert_same(use(roomy), use(plain))
    kept = [peak(roomy(stepping(Deep(), []), None), rows()) for _ in range(1)]
    freed = roomy(Deep(), None)
    for p in freed.parameters():
        p.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    weights = 4 * sum(p.numel() for p in freed.parameters())
    assert peak(freed, rows()) < 1.6 * weights < kept[0]


def test_hooks_run_in_the_order_of_plain_pytorch() -> None:
    """Weights by layer; those of one layer in whichever order its own gradients are made."""

    def order(fit: Fit) -> list[str]:
        seen: list[str] = []
        model = fit(Deep(), None)
        for name, p in model.named_parameters():
            if name.endswith("weight"):
                p.register_post_accumulate_grad_hook(lambda p, name=name: seen.append(name))
        model(rows()).sum().backward()
        return seen

    assert order(roomy) == order(plain) == [f"{3 * layer}.weight" for layer in reversed(range(LAYERS))]


def test_a_hook_sees_only_the_gradients_made_so_far() -> None:
    model = roomy(Deep(), None)
    there: list[int] = []
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(
            lambda _: there.append(sum(q.grad is not None for q in model.parameters()))
        )
    model(rows()).sum().backward()
    assert there == list(range(1, 2 * LAYERS + 1))


def test_a_gradient_can_be_changed_on_its_way() -> None:
    def use(fit: Fit) -> list[Any]:
        model = Deep()
        model[0].weight.register_hook(lambda gradient: gradient * 3)
        model[6].bias.register_hook(lambda gradient: gradient.clone().fill_(1))
        model = fit(model, rows(64))
        torch.manual_seed(3)
        for part in range(2):
            model(rows(64, part)).square().sum().backward()
        return tensors(model)

    assert_same(use(roomy), use(plain))


def test_what_nobody_asks_for_is_not_worked_out() -> None:
    """The gradient of the last layer's bias alone: no piece behind it runs, and nothing stays behind."""
    model, x = roomy(Deep(0.0), None), rows()
    model(x).sum().backward()
    model.zero_grad()
    gc.collect()
    with LiveBytes("cpu", holding=[model, x], record=True) as live:
        loss = model(x).sum()
        (bias,) = torch.autograd.grad(loss, [model[15].bias])
        calls = [name for name, _ in live.timeline].count("aten.mm.default")
        del loss
        gc.collect()
        left = live.now
    assert calls <= 2
    assert left == live.start + 4 * bias.numel()
    model(x).sum().backward()
    assert_same([bias], [model[15].bias.grad])


def test_inputs_of_backward_and_of_grad() -> None:
    def use(fit: Fit) -> list[Any]:
        x = rows(64).requires_grad_()
        model = fit(Deep(), x)
        torch.manual_seed(3)
        loss = model(x).square().mean()
        parameters = list(model.parameters())
        found: list[Any] = [*torch.autograd.grad(loss, [parameters[3], x], retain_graph=True)]
        loss.backward(inputs=[parameters[2], parameters[9]], retain_graph=True)
        found += [p.grad for p in parameters]
        loss.backward()
        return [*found, x.grad, *tensors(model)]

    check_exact(use)


def test_weights_used_outside_too() -> None:
    def use(fit: Fit) -> list[Any]:
        model = fit(Deep(), rows(64))
        torch.manual_seed(3)
        for part in range(2):
            loss = model(rows(64, part)).square().mean() + model[0].weight.square().sum()
            (loss + functional.linear(rows(8), model[9].weight).sum()).backward()
        return tensors(model)

    assert_same(use(roomy), use(plain))


class Held(nn.Module):
    """Outputs and writes that concern an input which wants a gradient itself."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.body, self.way = Deep(), way

    def forward(self, x: Tensor) -> Any:
        y = self.body(x + 1)
        if self.way == "written":
            x.mul_(y.sigmoid())
            return y + x
        return (y, x[:2]) if self.way == "view" else (y, self.body[0].weight.t())


@pytest.mark.parametrize("way", ["written", "view", "weight"])
def test_inputs_that_autograd_must_see(way: str) -> None:
    def use(fit: Fit) -> list[Any]:
        x = rows(64).requires_grad_()
        inner = x * 2
        model = fit(Held(way), inner)
        torch.manual_seed(3)
        output = model(inner)
        parts = output if isinstance(output, tuple) else (output, inner)
        sum(part.square().sum() for part in parts).backward()
        return [output, x.grad, *tensors(model)]

    assert_same(use(roomy), use(plain))


def test_an_exception_between_two_gradients_leaves_nothing_behind() -> None:
    """No more than plain PyTorch does until the next step, and nothing after that."""

    def fail(_: Tensor) -> None:
        raise ZeroDivisionError

    def use(fit: Fit) -> tuple[list[int], list[Any]]:
        model, x = fit(Deep(), None), rows()
        model(x).sum().backward()
        model.zero_grad()
        left = []
        with LiveBytes("cpu", holding=[model, x]) as live:
            handle = model[6].weight.register_post_accumulate_grad_hook(fail)
            with pytest.raises(ZeroDivisionError):
                model(x).sum().backward()
            model.zero_grad()
            gc.collect()
            left.append(live.now - live.start)
            handle.remove()
            torch.manual_seed(3)
            model(x).sum().backward()
            found = tensors(model)
            model.zero_grad()
            gc.collect()
            left.append(live.now - live.start)
        return left, found

    (planned, found), (expected, tensors_expected) = use(roomy), use(plain)
    assert planned[0] <= expected[0]
    assert planned[1] == expected[1]
    assert_same(found, tensors_expected)


def test_gradients_of_gradients_are_refused_by_name() -> None:
    x = rows().requires_grad_()
    model = roomy(Deep(), x)
    (slope,) = torch.autograd.grad(model(x).square().mean(), x, create_graph=True)
    with pytest.raises(lowtide.UnsupportedModel, match="double backward"):
        (slope.square().sum() + model(x).sum()).backward()


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_backward_inside_autocast(kind: torch.dtype) -> None:
    def use(fit: Fit) -> list[Any]:
        model = Deep()
        torch.manual_seed(3)
        with torch.autocast("cpu", kind):
            fit(model, rows())(rows()).float().sum().backward()
        return tensors(model)

    assert_same(use(roomy), use(plain))


def two_outputs(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    for number, layer in enumerate(self):
        x = layer(x)
        if number == 8:
            y = x
    return x, y.exp()


@pytest.mark.parametrize("used", [0, 1])
def test_an_output_without_a_gradient(used: int) -> None:
    class Forked(Deep):
        forward = two_outputs

    def use(fit: Callable[..., nn.Module]) -> list[Any]:
        model = fit(Forked(), rows(64))
        torch.manual_seed(3)
        for part in range(2):
            model(rows(64, part))[used].sum().backward()
        return tensors(model)

    assert_same(use(roomy), use(plain))
