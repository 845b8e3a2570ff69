"""What people do with a model: each use is the same to the last bit with and without a plan, at any budget."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import lowtide
from lowtide.measure.live import LiveBytes
from training import same

Fit = Callable[[nn.Module, Any], nn.Module]
Use = Callable[[Fit], list[Any]]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def plain(model: nn.Module, batch: Any) -> nn.Module:
    """The model as it is."""
    return model


def tightest(model: nn.Module, batch: Any) -> nn.Module:
    """The model at the least budget that its error names."""
    return lowtide.fit(model, memory_budget=least(model, batch))


def roomy(model: nn.Module, batch: Any) -> nn.Module:
    """The model with nothing run again."""
    return lowtide.fit(model, memory_budget="1TB", planner="keep_all")


def least(model: nn.Module, batch: Any, **options: Any) -> int:
    with pytest.raises(lowtide.BudgetTooSmall) as error:
        lowtide.plan(model, batch, memory_budget=0, **options)
    return error.value.needed


def fitted(model: nn.Module) -> Any:
    """What stands in for the model's call."""
    return model._compiled_call_impl


def tensors(model: nn.Module) -> list[Any]:
    """Gradients, parameters, buffers and the generator, copied."""
    found = [p.grad for p in model.parameters()] + list(model.parameters()) + list(model.buffers())
    return [None if t is None else t.detach().clone() for t in found] + [torch.get_rng_state()]


def check_exact(use: Use, *, reruns: bool = True) -> None:
    """The use leaves the same bits plain, at the least budget and with all kept; at the least, something runs again."""
    expected = use(plain)
    models: list[nn.Module] = []

    def noted(fit: Fit) -> Fit:
        def call(model: nn.Module, batch: Any) -> nn.Module:
            models.append(fit(model, batch))
            return models[-1]

        return call

    assert_same(use(noted(tightest)), expected)
    if reruns:
        assert fitted(models[-1]).plan.reruns > 0
    assert_same(use(noted(roomy)), expected)
    assert fitted(models[-1]).plan.reruns == 0


def assert_same(found: list[Any], expected: list[Any]) -> None:
    found, expected = tree_leaves(found), tree_leaves(expected)
    assert len(found) == len(expected)
    assert [i for i, (a, b) in enumerate(zip(found, expected)) if not same_leaf(a, b)] == []


def same_leaf(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        a, b = a.detach().contiguous(), b.detach().contiguous()
        if a.dtype is torch.bfloat16 and b.dtype is torch.bfloat16:
            a, b = a.view(torch.int16), b.view(torch.int16)
        return same(a, b)
    return bool(a == b)


def perceptron(dropout: float = 0.1, layers: int = 3) -> nn.Sequential:
    """Layers whose activations outweigh their weights."""
    torch.manual_seed(0)
    made: list[nn.Module] = []
    for _ in range(layers):
        made += [nn.Linear(16, 16), nn.GELU(), nn.Dropout(dropout)]
    return nn.Sequential(*made, nn.Linear(16, 8))


def batch(rows: int = 64, seed: int = 1) -> Tensor:
    return torch.randn(rows, 16, generator=torch.Generator().manual_seed(seed))


def step(model: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
    """Forward and backward of a loss outside the model."""
    loss = model(*args, **kwargs).float().square().mean()
    loss.backward()
    return loss


def module(forward: Callable[..., Any], *, dropout: float = 0.1) -> nn.Module:
    """A perceptron, a norm and a head under another forward."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = perceptron(dropout)
            self.head = nn.Linear(8, 8)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return forward(self, *args, **kwargs)

    return Model()


# Arguments and results


@dataclass
class Sample:
    """A batch as people pass it."""

    x: Tensor
    weights: Tensor | None
    names: list[str]
    scale: float = 1.0


class TakesSample(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = perceptron()

    def forward(self, sample: Sample, *, extra: dict[str, Any] | None = None, gate: bool = False) -> Tensor:
        y = self.body(sample.x) * sample.scale
        if sample.weights is not None:
            y = y * sample.weights
        if extra is not None:
            y = y + extra["more"][0]
        return y.sigmoid() if gate else y


def test_arguments_in_dataclasses_keywords_none_and_containers() -> None:
    def use(fit: Fit) -> list[Any]:
        args = (Sample(batch(), None, ["a"], 0.5),)
        model = fit(TakesSample(), args)
        found: list[Any] = []
        for place, (sample, kwargs) in enumerate(
            (
                (Sample(batch(), None, ["a"], 0.5), {}),
                (Sample(batch(), torch.full((64, 1), 2.0), ["b"], 0.5), {}),
                (Sample(batch(32), None, ["b"], 0.5), {"extra": {"more": (torch.ones(8), None)}, "gate": True}),
                (Sample(batch(48), torch.ones(48, 1), [], 2.0), {"gate": True}),
            )
        ):
            if place and fit is not plain:  # The others hold more than the one that the budget is the least for.
                lowtide.fit(model, memory_budget=10**9)
            model.zero_grad()
            found += [step(model, sample, **kwargs), *tensors(model)]
        return found

    check_exact(use, reruns=False)


def test_shapes_inside_dataclasses_are_new_shapes(caplog: pytest.LogCaptureFixture) -> None:
    model = lowtide.fit(TakesSample(), memory_budget="1TB")
    with caplog.at_level(logging.INFO, "lowtide"):
        for rows in (8, 16, 8):
            step(model, Sample(batch(rows), None, []))
    assert sum("a new shape" in line for line in caplog.messages) == 1


def test_many_shapes_inside_dataclasses() -> None:
    """More shapes than the front end would keep by itself."""

    def use(fit: Fit) -> list[Any]:
        model = fit(TakesSample(), (Sample(batch(40), None, []),))
        found: list[Any] = []
        for rows in range(40, 10, -1):
            found.append(step(model, Sample(batch(rows), None, [])))
        return found + tensors(model)

    expected = use(plain)
    assert_same(use(lambda model, _: lowtide.fit(model, memory_budget="1TB", max_shapes=4)), expected)


def test_loss_inside() -> None:
    def forward(self: Any, x: Tensor, target: Tensor) -> Any:
        logits = self.head(self.body(x))
        return functional.cross_entropy(logits, target), logits

    def use(fit: Fit) -> list[Any]:
        args = batch(), torch.arange(64) % 8
        model = fit(module(forward), args)
        loss, logits = model(*args)
        loss.backward()
        return [loss, logits, *tensors(model)]

    check_exact(use)


def test_outputs_without_gradient_and_unused_ones() -> None:
    """Several outputs; the loss reads two of them, one of the others needs no gradient, one is an integer."""

    def forward(self: Any, x: Tensor) -> Any:
        y = self.body(x)
        return y, {"choice": y.argmax(-1), "mean": y.detach().mean(0)}, self.head(y), None, 3

    def use(fit: Fit) -> list[Any]:
        model = fit(module(forward), batch())
        first, more, second, _, _ = output = model(batch())
        assert not more["mean"].requires_grad
        (first.square().mean() + second.sin().mean()).backward()
        return [output, *tensors(model)]

    check_exact(use)


def test_an_input_that_is_returned() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        y = self.body(x)
        return x, y, y.view(-1), x[0]

    def use(fit: Fit) -> list[Any]:
        x = batch()
        model = fit(module(forward), x)
        same_x, y, flat, _ = model(x)
        assert same_x is x
        assert flat.data_ptr() == y.data_ptr()
        (y.square().mean() + flat.mean()).backward()
        return [y, flat, *tensors(model)]

    check_exact(use)


def test_input_gradients() -> None:
    def use(fit: Fit) -> list[Any]:
        x = batch().requires_grad_()
        model = fit(perceptron(), x)
        inner = batch(seed=2).requires_grad_()
        found = [step(model, x), x.grad]
        x.grad = None
        model.zero_grad()
        found += [step(model, inner * 2), inner.grad]
        return found + tensors(model)

    check_exact(use)


# Weights


def test_tied_weights() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embed = nn.Embedding(32, 16, padding_idx=3)
            self.body = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(3)))
            self.head = nn.Linear(16, 32, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.body(self.embed(tokens)))

    def use(fit: Fit) -> list[Any]:
        tokens = torch.arange(64) % 32
        model = fit(Tied(), tokens)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        found: list[Any] = []
        for _ in range(2):
            optimizer.zero_grad()
            found += [step(model, tokens), *tensors(model)]
            optimizer.step()
        assert model.head.weight is model.embed.weight
        return found

    check_exact(use)


def test_frozen_weights() -> None:
    def use(fit: Fit) -> list[Any]:
        model = perceptron()
        model[0].requires_grad_(False)
        model[6].weight.requires_grad_(False)
        model = fit(model, batch())
        return [step(model, batch()), *tensors(model)]

    check_exact(use)


def test_sparse_embedding_gradients_are_refused() -> None:
    model = lowtide.fit(nn.Sequential(nn.Embedding(32, 16, sparse=True), nn.Linear(16, 4)), memory_budget="1TB")
    with pytest.raises(lowtide.UnsupportedModel, match="sparse"):
        model(torch.arange(8))
    with pytest.raises(lowtide.UnsupportedModel, match="sparse"):
        lowtide.plan(lowtide.unfit(model), torch.arange(8), memory_budget="1TB")


# Kinds of layers


def test_in_place_operators() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.body(x)
        y.mul_(2).add_(1)
        y[:, 0] = 0
        y[1:].tanh_()
        y = self.head(y).relu_() * 2
        y += 1
        return y

    def use(fit: Fit) -> list[Any]:
        model = fit(module(forward), batch())
        return [step(model, batch()), *tensors(model)]

    check_exact(use)


def test_operators_that_the_front_end_would_write_in_others() -> None:
    """A scaled sum rounds once where a product and a sum round twice."""

    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.body(x)
        y = y.add(1).add_(y.sin(), alpha=0.1).addcmul_(y, y.cos(), value=0.3)
        return self.head(y.addcdiv_(y.tanh(), y.exp() + 1, value=0.7))

    def use(fit: Fit) -> list[Any]:
        model = fit(module(forward), batch())
        return [step(model, batch()), *tensors(model)]

    check_exact(use)


def test_an_input_written_to() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.body(x + 1)
        x.mul_(0.5)
        return self.head(y) + x.mean()

    def use(fit: Fit) -> list[Any]:
        x = batch()
        model = fit(module(forward), batch())
        return [step(model, x), x, *tensors(model)]

    check_exact(use)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv = nn.ModuleList(nn.Linear(16, 48) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for qkv, out in zip(self.qkv, self.out):
            q, k, v = qkv(x).view(4, 8, 3, 2, 8).permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(q, k, v, dropout_p=0.2, is_causal=True)
            x = x + out(functional.gelu(y.transpose(1, 2).reshape(4, 8, 16)))
        return x


def test_attention_with_dropout() -> None:
    def use(fit: Fit) -> list[Any]:
        x = torch.randn(4, 8, 16, generator=torch.Generator().manual_seed(0))
        model = fit(Attention(), x)
        torch.manual_seed(3)
        return [step(model, x), *tensors(model)]

    check_exact(use)


@pytest.mark.parametrize("inside", [False, True])
def test_autocast_to_bfloat16(inside: bool) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        if not inside:
            return self.head(self.body(x))
        with torch.autocast("cpu", torch.bfloat16):
            y = self.body(x)
        return self.head(y.float())

    def use(fit: Fit) -> list[Any]:
        model = module(forward)
        torch.manual_seed(3)
        with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
            model = fit(model, batch())
            output = model(batch())
        output.float().square().mean().backward()
        return [output, *tensors(model)]

    check_exact(use)


def test_autocast_switched_off_later() -> None:
    def use(fit: Fit) -> list[Any]:
        model = fit(perceptron(), batch())
        found = [step(model, batch())]
        for kind in (torch.bfloat16, torch.float16):
            model.zero_grad()
            with torch.autocast("cpu", kind):
                output = model(batch())
            output.float().square().mean().backward()
            found += [output, *tensors(model)]
        model.zero_grad()
        return [*found, step(model, batch()), *tensors(model)]

    assert_same(use(roomy), use(plain))


def test_autocast_to_float16_with_a_gradient_scaler() -> None:
    def use(fit: Fit) -> list[Any]:
        model = perceptron()
        with torch.autocast("cpu", torch.float16):
            model = fit(model, batch())
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cpu")
        torch.manual_seed(3)
        found: list[Any] = []
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = model(batch()).float().square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            found += [loss, scaler.get_scale(), *tensors(model)]
        return found

    check_exact(use)


def images(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    layers = []
    width = 3
    for _ in range(3):
        layers += [nn.Conv2d(width, 8, 3, padding=1), nn.BatchNorm2d(8, **options), nn.ReLU(inplace=True)]
        width = 8
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))


def picture() -> Tensor:
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def test_channels_last() -> None:
    def use(fit: Fit) -> list[Any]:
        x = picture().to(memory_format=torch.channels_last)
        model = fit(images().to(memory_format=torch.channels_last), x)
        found = [step(model, x), *tensors(model)]
        assert all(p.grad.stride() == p.stride() for p in model.parameters())
        model.zero_grad()
        return found + [step(model, picture()), *tensors(model)]

    check_exact(use)


@pytest.mark.parametrize("options", [{}, {"track_running_stats": False}])
def test_batch_norm_statistics_move_once(options: dict[str, Any]) -> None:
    def use(fit: Fit) -> list[Any]:
        model = fit(images(**options), picture())
        if not options:
            assert model[1].num_batches_tracked == 0
        found = [step(model, picture()), *tensors(model)]
        if not options:
            assert model[1].num_batches_tracked == 1
        model.zero_grad()
        return [*found, step(model, picture()), *tensors(model)]

    check_exact(use)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_inside_already(reentrant: bool) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.body, x, use_reentrant=reentrant))

    def use(fit: Fit) -> list[Any]:
        x = batch().requires_grad_()
        model = fit(module(forward), x)
        torch.manual_seed(3)
        return [step(model, x), x.grad, *tensors(model)]

    check_exact(use, reruns=False)


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x.sin())
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2 + ctx.saved_tensors[0] * 0.01


def test_a_custom_function() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.head(Twice.apply(self.body(Twice.apply(x))))

    def use(fit: Fit) -> list[Any]:
        x = batch().requires_grad_()
        model = fit(module(forward), x)
        return [step(model, x), x.grad, *tensors(model)]

    check_exact(use)


def broken(self: Any, x: Tensor) -> Tensor:
    y = self.body(x)
    torch._dynamo.graph_break()
    z = self.head(y)
    if z.sum().item() > -1e9:
        z = functional.gelu(z @ z.T) @ z
    return self.head(z)


def test_graph_breaks() -> None:
    """One budget over all graphs; two steps, since the first only finds the graphs."""

    def use(fit: Fit) -> list[Any]:
        model = fit(module(broken), batch())
        torch.manual_seed(3)
        found: list[Any] = []
        for _ in range(3):
            model.zero_grad()
            found += [step(model, batch()), *tensors(model)]
        return found

    check_exact(use)


def test_graph_breaks_within_budget() -> None:
    budget = least(module(broken), batch())
    model = lowtide.fit(module(broken), memory_budget=budget)
    x = batch()
    for _ in range(3):
        model.zero_grad()
        with LiveBytes("cpu", holding=[model, x]) as live:
            model(x).sum().backward()
        assert live.peak <= budget
    assert fitted(model).plan.total <= budget


class Block(nn.Module):
    """Breaks the graph in its midst."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.gelu(self.first(x))
        torch._dynamo.graph_break()
        return x + self.second(functional.gelu(y))


def test_layers_that_share_a_graph_within_budget() -> None:
    """The front end compiles alike layers once; each of them still gets runs of its own."""
    torch.manual_seed(0)
    blocks = nn.Sequential(*(Block() for _ in range(4)))
    x = batch()
    reference = copy.deepcopy(blocks)
    everything = lowtide.plan(copy.deepcopy(blocks), x, memory_budget="1TB").total
    low = least(copy.deepcopy(blocks), x)
    assert low < everything
    for share in (0, 0.3, 0.6, 1):
        torch._dynamo.reset()
        model = lowtide.fit(copy.deepcopy(blocks), memory_budget=int(low + share * (everything - low)))
        for turn in range(3):
            model.zero_grad()
            with LiveBytes("cpu", holding=[model, x]) as live:
                model(x).sum().backward()
            assert live.peak <= fitted(model).plan.budget + fitted(model).plan.static
            if turn:
                # What one graph hands to the next counts to the end of the step, and may be gone before.
                assert 0.9 * fitted(model).plan.total <= live.peak <= fitted(model).plan.total
        reference.zero_grad()
        reference(x).sum().backward()
        assert_same(tensors(model), tensors(reference))


# Shapes


def test_new_shapes_are_planned_once_each(caplog: pytest.LogCaptureFixture) -> None:
    planned = []

    def use(fit: Fit) -> list[Any]:
        model = fit(perceptron(), batch(64))
        torch.manual_seed(3)
        found: list[Any] = []
        for rows in (64, 32, 48, 64, 32, 48):
            model.zero_grad()
            found += [step(model, batch(rows)), *tensors(model)]
            if fit is not plain:
                planned.append(fitted(model).plan)
        return found

    expected = use(plain)
    with caplog.at_level(logging.INFO, "lowtide"):
        assert_same(use(tightest), expected)
    assert [line for line in caplog.messages if "new shape" in line] == [
        "lowtide: a new shape of input, number 2: planning for it",
        "lowtide: a new shape of input, number 3: planning for it",
    ]
    assert len({id(plan) for plan in planned}) == 3


def test_shapes_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    def use(fit: Fit) -> list[Any]:
        model = fit(perceptron(), batch(64))
        torch.manual_seed(3)
        found: list[Any] = []
        for rows in (64, 32, 48, 64, 32, 16, 64):
            model.zero_grad()
            found += [step(model, batch(rows)), *tensors(model)]
        return found

    expected = use(plain)
    with caplog.at_level(logging.WARNING, "lowtide"):
        assert_same(use(lambda model, _: lowtide.fit(model, memory_budget="1TB", max_shapes=2)), expected)
    assert caplog.messages
    assert all("max_shapes" in line for line in caplog.messages)


# Ways of training


def test_two_forwards_before_one_backward() -> None:
    def use(fit: Fit) -> list[Any]:
        model = fit(perceptron(), batch())
        torch.manual_seed(3)
        first, second = model(batch()), model(batch(seed=2))
        (first.square().mean() + second.square().mean()).backward()
        found = tensors(model)
        model.zero_grad()
        first, second = model(batch()), model(batch(seed=2))
        first.square().mean().backward()
        second.square().mean().backward()
        return found + tensors(model)

    check_exact(use)


def test_gradient_accumulation() -> None:
    def use(fit: Fit) -> list[Any]:
        model = perceptron()
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        model = fit(model, batch())
        model.zero_grad()
        torch.manual_seed(3)
        for part in range(4):
            (model(batch(seed=part)).square().mean() / 4).backward()
        return tensors(model)

    check_exact(use)


def test_gradient_accumulation_within_budget() -> None:
    """The first micro-batch fits its least budget; the second needs room for the gradients, and says so."""
    budget = least(perceptron(), batch(512))
    model = lowtide.fit(perceptron(), memory_budget=budget)
    step(model, batch(512))
    before = tensors(model)
    with pytest.raises(lowtide.BudgetTooSmall) as error:
        model(batch(512))
    assert error.value.needed > budget
    assert_same(tensors(model), before)
    model.zero_grad()
    budget = error.value.needed
    lowtide.fit(model, memory_budget=budget)
    for _ in range(2):
        for part in range(4):
            x = batch(512, seed=part)
            with LiveBytes("cpu", holding=[model, x]) as live:
                model(x).sum().backward()
            assert live.peak <= budget
        assert live.peak >= 0.9 * fitted(model).plan.total
        model.zero_grad()


def test_retain_graph() -> None:
    def use(fit: Fit) -> list[Any]:
        model = fit(perceptron(), batch())
        torch.manual_seed(3)
        loss = model(batch()).square().mean()
        loss.backward(retain_graph=True)
        first = tensors(model)
        loss.backward()
        return [*first, *tensors(model)]

    check_exact(use)


def test_autograd_grad() -> None:
    def use(fit: Fit) -> list[Any]:
        x = batch().requires_grad_()
        model = fit(perceptron(), x)
        loss = model(x).square().mean()
        parameters = list(model.parameters())
        found = torch.autograd.grad(loss, [x, *parameters], retain_graph=True)
        some = torch.autograd.grad(loss, parameters[:2])
        assert all(p.grad is None for p in model.parameters())
        return [*found, *some]

    check_exact(use)


def test_double_backward_is_refused_by_name() -> None:
    x = batch().requires_grad_()
    model = roomy(perceptron(), x)
    (slope,) = torch.autograd.grad(model(x).square().mean(), x, create_graph=True)
    penalty = slope.square().sum()
    with pytest.raises(lowtide.UnsupportedModel, match=r"double backward"):
        penalty.backward()


def test_eval_and_no_grad_run_the_plain_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    model, twin = tightest(perceptron(), batch()), perceptron()
    reached = []
    monkeypatch.setattr(fitted(model), "_compiled", lambda *args: reached.append(args))
    torch.manual_seed(3)
    with torch.no_grad():
        found = [model(batch())]
    with torch.inference_mode():
        found.append(model(batch()).clone())
    model.eval()
    found.append(step(model, batch()))
    found += tensors(model)
    assert not reached
    torch.manual_seed(3)
    with torch.no_grad():
        expected = [twin(batch()), twin(batch())]
    twin.eval()
    expected.append(step(twin, batch()))
    assert_same(found, expected + tensors(twin))
    model.train()
    with pytest.raises(lowtide.UnsupportedModel):
        model(batch())
    assert reached


def test_switching_train_and_eval() -> None:
    def use(fit: Fit) -> list[Any]:
        model = fit(images(), picture())
        found: list[Any] = []
        for _ in range(2):
            model.zero_grad()
            found.append(step(model.train(), picture()))
            found.append(model.eval()(picture()))
            found += tensors(model)
        return found

    check_exact(use)


def test_a_layer_in_eval_mode() -> None:
    """A frozen batch norm inside a training model, switched on and off."""

    def use(fit: Fit) -> list[Any]:
        model = images()
        model[1].eval()
        model = fit(model, picture())
        found = [step(model, picture()), *tensors(model)]
        if fit is not plain:
            lowtide.fit(model, memory_budget="1TB", planner="keep_all" if fit is roomy else "greedy")
        for training in (True, False, True):
            model[1].train(training)
            model.zero_grad()
            found += [step(model, picture()), *tensors(model)]
        return found

    check_exact(use, reruns=False)


def test_hooks() -> None:
    seen: list[Any] = []

    def use(fit: Fit) -> list[Any]:
        seen.clear()
        model = perceptron()
        model.register_forward_pre_hook(lambda _, args: (args[0] * 2,))
        model.register_forward_hook(lambda _, args, output: output + 1)
        model[0].register_forward_hook(lambda _, args, output: output * 0.5)
        model[2].register_forward_pre_hook(lambda _, args: (args[0] - 1,))
        model[0].weight.register_hook(lambda gradient: gradient * 3)
        model[3].bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
        model = fit(model, batch())
        torch.manual_seed(3)
        return [step(model, batch()), *tensors(model), *seen]

    check_exact(use)
    assert len(seen) == 1


@pytest.mark.parametrize("layer", [None, 3])
def test_full_backward_hooks_are_refused_by_name(layer: int | None) -> None:
    model = perceptron()
    (model if layer is None else model[layer]).register_full_backward_hook(lambda _, gin, gout: None)
    with pytest.raises(lowtide.UnsupportedModel, match=r"backwards? hook"):
        roomy(model, batch())(batch())


def test_a_cumulative_batch_norm_is_refused_by_name() -> None:
    """It turns a tensor into a number, in a loop over layers, so that the front end takes nothing."""
    with pytest.raises(lowtide.UnsupportedModel, match="item") as error:
        roomy(images(momentum=None), picture())(picture())
    assert "graph_break" not in str(error.value)


def test_hooks_that_come_after_fit() -> None:
    def use(fit: Fit) -> list[Any]:
        model = fit(perceptron(), batch())
        torch.manual_seed(3)
        found = [step(model, batch())]
        if fit is not plain:
            lowtide.fit(model, memory_budget=10**8)
        outer = model.register_forward_hook(lambda _, args, output: output * 2)
        inner = model[0].register_forward_hook(lambda _, args, output: output * 2)
        found.append(step(model, batch()))
        inner.remove()
        found.append(step(model, batch()))
        outer.remove()
        found.append(step(model, batch()))
        return found + tensors(model)

    check_exact(use, reruns=False)


def test_tensor_hooks_inside_forward() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.body(x)
        y.register_hook(lambda gradient: gradient * 0.5)
        return self.head(y)

    def use(fit: Fit) -> list[Any]:
        model = fit(module(forward), batch())
        torch.manual_seed(3)
        return [step(model, batch()), *tensors(model)]

    check_exact(use, reruns=False)


def test_optimizer_step_inside_backward() -> None:
    def use(fit: Fit) -> list[Any]:
        model = perceptron()
        optimizers = {p: torch.optim.AdamW([p], lr=0.01) for p in model.parameters()}

        def hook(p: Tensor) -> None:
            optimizers[p].step()
            optimizers[p].zero_grad()

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(hook)
        model = fit(model, batch())
        torch.manual_seed(3)
        return [step(model, batch()), step(model, batch()), *tensors(model)]

    check_exact(use)


# The model stays yours


def test_the_model_is_left_as_it_is() -> None:
    model = images()
    keys, identities = list(model.state_dict()), [id(p) for p in model.parameters()]
    modules = [(name, type(m)) for name, m in model.named_modules()]
    attributes = set(vars(model))
    assert tightest(model, picture()) is model
    step(model, picture())
    assert list(model.state_dict()) == keys
    assert [id(p) for p in model.parameters()] == identities
    assert [(name, type(m)) for name, m in model.named_modules()] == modules
    lowtide.unfit(model)
    assert set(vars(model)) == attributes
    assert model._compiled_call_impl is None


def test_load_state_dict_after_fit() -> None:
    def use(fit: Fit) -> list[Any]:
        model = fit(images(), picture())
        other = images()
        with torch.no_grad():
            for p in other.parameters():
                p.add_(0.125)
        found = [step(model, picture())]
        model.load_state_dict(other.state_dict())
        model.zero_grad()
        found += [step(model, picture()), *tensors(model)]
        model.load_state_dict(images().state_dict(), assign=True)
        model.zero_grad(set_to_none=True)
        return found + [step(model, picture()), *tensors(model)]

    check_exact(use)


@pytest.mark.parametrize("trained", [False, True])
def test_copies_of_a_fitted_model_are_plain_models(trained: bool) -> None:
    model = tightest(perceptron(), batch())
    if trained:
        step(model, batch())
        model.zero_grad()
    expected = perceptron()
    torch.manual_seed(3)
    expected = [step(expected, batch()), *tensors(expected)]
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert fitted(twin) is None
        assert not {*twin.parameters()} & {*model.parameters()}
        torch.manual_seed(3)
        assert_same([step(twin, batch()), *tensors(twin)], expected)
    assert fitted(model).model is model
    torch.manual_seed(3)
    assert_same([step(model, batch()), *tensors(model)], expected)


def test_unfit_and_fit_again() -> None:
    def use(fit: Fit) -> list[Any]:
        model = perceptron()
        torch.manual_seed(3)
        found: list[Any] = []
        for one in (fit, plain, fit, fit):
            model.zero_grad()
            model = one(lowtide.unfit(model), batch()) if fit is not plain else model
            if one is plain:
                assert fitted(model) is None
            found += [step(model, batch()), *tensors(model)]
        model.zero_grad()
        if fit is not plain:
            first = fitted(model)
            model = fit(model, batch())
            assert fitted(model) is not first
        return [*found, step(model, batch()), *tensors(model)]

    check_exact(use)


def test_plan_leaves_everything_as_it_was() -> None:
    model = images()
    model.append(nn.Dropout(0.5))
    model.eval()
    model[0].train()
    step(model, picture())
    before, modes = tensors(model), [m.training for m in model.modules()]
    x = picture()
    for budget in (0, "1TB"):
        try:
            lowtide.plan(model, x, memory_budget=budget)
        except lowtide.BudgetTooSmall:
            assert budget == 0
        assert_same(tensors(model), before)
        assert [m.training for m in model.modules()] == modes
        assert fitted(model) is None
    assert_same([x], [picture()])


def test_plan_of_a_broken_model_leaves_everything_as_it_was() -> None:
    model = nn.Sequential(images(), Printing(), nn.BatchNorm1d(4), nn.Dropout(0.5))
    step(model, picture())
    before = tensors(model)
    lowtide.plan(model, picture(), memory_budget="1TB")
    assert_same(tensors(model), before)


class Printing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return x * 2


def test_plan_on_the_meta_device_and_in_eval_mode() -> None:
    expected = lowtide.plan(perceptron(), batch(), memory_budget="1TB")
    assert lowtide.plan(perceptron().eval(), batch(), memory_budget="1TB") == expected
    with torch.device("meta"):
        model = perceptron()
    assert lowtide.plan(model, batch().to("meta"), memory_budget="1TB").total == expected.total
    assert least(model, batch().to("meta")) == least(perceptron(), batch())


def test_plans_are_saved_loaded_and_applied(tmp_path: Path) -> None:
    budget = least(perceptron(), batch())
    lowtide.plan(perceptron(), batch(), memory_budget=budget).save(tmp_path / "plan")
    loaded = lowtide.Plan.load(tmp_path / "plan")

    def use(fit: Fit) -> list[Any]:
        model = perceptron()
        if fit is not plain:
            lowtide.apply(model, loaded)
        torch.manual_seed(3)
        return [step(model, batch()), *tensors(model)]

    assert_same(use(tightest), use(plain))


@pytest.mark.parametrize("model", [perceptron(layers=4), perceptron(0.0)])
def test_a_plan_for_another_model_is_refused(model: nn.Module) -> None:
    found = lowtide.plan(perceptron(), batch(), memory_budget="1TB")
    lowtide.apply(model, found)
    state = torch.get_rng_state()
    with pytest.raises(lowtide.PlanMismatch):
        model(batch())
    assert same(torch.get_rng_state(), state)
    with pytest.raises(lowtide.PlanMismatch):
        model(batch())
    lowtide.apply(perceptron(), found)(batch())
    with pytest.raises(lowtide.PlanMismatch):
        lowtide.apply(perceptron(), found)(batch(32))


@pytest.mark.parametrize("budget", ["a lot", "", "-1GB", -1, None, 1.5, "120%", True])
def test_budgets_that_are_none(budget: Any) -> None:
    with pytest.raises(lowtide.InvalidBudget):
        lowtide.fit(perceptron(), memory_budget=budget)
    with pytest.raises(lowtide.InvalidBudget):
        lowtide.plan(perceptron(), batch(), memory_budget=budget)


def test_options_that_do_not_exist() -> None:
    with pytest.raises(lowtide.LowtideError, match="planners are"):
        lowtide.fit(perceptron(), memory_budget=1, planner="none")
    with pytest.raises(lowtide.LowtideError, match="backends are"):
        lowtide.fit(perceptron(), memory_budget=1, backend="none")


def test_fit_with_a_batch_says_at_once() -> None:
    model = perceptron()
    with pytest.raises(lowtide.BudgetTooSmall) as error:
        lowtide.fit(model, memory_budget=10, batch=batch())
    assert fitted(model) is None
    lowtide.fit(model, memory_budget=error.value.needed, batch=batch())
    assert fitted(model).plan.total == error.value.needed
    with pytest.raises(lowtide.BudgetTooSmall) as smaller:
        lowtide.fit(model, memory_budget=error.value.needed - 1, batch=batch())
    assert smaller.value.needed == error.value.needed
