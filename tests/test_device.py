"""What differs between devices, on whichever one is there: exact, and inside the least budget, measured there."""

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
from lowtide.measure.allocated import peak_of
from test_uses import Fit, assert_same, fitted, plain
from training import DEVICE


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    gc.collect()


def state() -> Tensor:
    """The generator of the device."""
    return torch.get_rng_state() if DEVICE.type == "cpu" else torch.cuda.get_rng_state()


def numbers(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def check(
    build: Callable[[], nn.Module],
    x: Tensor,
    *,
    cast: torch.dtype | None = None,
    steps: int = 3,
    reruns: bool = True,
) -> None:
    """Steps, the last two adding up gradients, leave the same bits plain, at the least budget and with all kept; each
    keeps to its budget.
    """

    def tightest(model: nn.Module, _: Any) -> nn.Module:
        with (
            torch.autocast(DEVICE.type, cast, enabled=cast is not None),
            pytest.raises(lowtide.BudgetTooSmall) as error,
        ):
            lowtide.plan(model, x, memory_budget=0)
        return lowtide.fit(model, memory_budget=error.value.needed)

    def roomy(model: nn.Module, _: Any) -> nn.Module:
        return lowtide.fit(model, memory_budget="1TB", planner="keep_all")

    def use(fit: Fit) -> list[Any]:
        torch.manual_seed(0)
        model = fit(build().to(DEVICE), x)
        found: list[Any] = []
        outputs: list[Tensor] = []

        def step() -> None:
            with torch.autocast(DEVICE.type, cast, enabled=cast is not None):
                output = model(x)
            output.float().square().mean().backward()
            outputs.append(output.detach())

        torch.manual_seed(3)
        for number in range(steps):
            if number == 1:
                model.zero_grad()
            if number == 2 and fit is tightest:  # Gradients are there: it may take more.
                lowtide.fit(model, memory_budget="1TB")
            peak = peak_of(DEVICE, step, holding=[model, x])
            if fit is not plain:
                assert peak <= fitted(model).plan.total
            if fit is tightest and number == 0:
                assert fitted(model).plan.reruns > 0 or not reruns
            found += [outputs.pop().float().cpu(), *(p.grad.float().cpu().clone() for p in model.parameters())]
        return [*found, *(b.cpu() for b in model.buffers()), state()]

    expected = use(plain)
    for fit in (tightest, roomy):
        torch._dynamo.reset()
        assert_same(use(fit), expected)


class Attending(nn.Module):
    def __init__(self, dropout: float, dtype: torch.dtype, *, causal: bool, width: int = 64) -> None:
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width, dtype=dtype) for _ in range(3))
        self.dropout, self.causal = dropout, causal

    def forward(self, x: Tensor) -> Tensor:
        for qkv in self.qkv:
            q, k, v = qkv(x).view(*x.shape[:2], 3, 2, 32).permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=self.causal)
            x = x + functional.gelu(y.transpose(1, 2).reshape(x.shape))
        return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("dropout", "causal"), [(0.0, True), (0.2, False)])
def test_attention(dtype: torch.dtype, dropout: float, causal: bool) -> None:
    """On CUDA the kernels of FlashAttention, cuDNN and the memory-efficient one, which keep seeds of their own."""
    check(lambda: Attending(dropout, dtype, causal=causal), numbers(4, 64, 64, dtype=dtype))


class Dropping(nn.Module):
    """Masks of each kind, on dense and on transposed tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = functional.dropout(functional.gelu(layer(x)), 0.1)
            x = functional.dropout1d(x.t().unsqueeze(0), 0.3).squeeze(0).t() + torch.rand_like(x)
            x = functional.alpha_dropout(x, 0.1, True) * torch.bernoulli(torch.full_like(x, 0.9))
        return x


def test_random_numbers() -> None:
    check(Dropping, numbers(256, 64))


class Pictures(nn.Sequential):
    def __init__(self) -> None:
        super().__init__()
        for width in (3, 16, 16):
            self.append(nn.Conv2d(width, 16, 3, padding=1, bias=False))
            self.append(nn.BatchNorm2d(16))
            self.append(nn.ReLU(inplace=True))
        self.append(nn.MaxPool2d(2))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_pictures(layout: torch.memory_format) -> None:
    x = numbers(8, 3, 32, 32).to(memory_format=layout)
    check(lambda: Pictures().to(memory_format=layout), x)


@pytest.mark.parametrize("cast", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("build", [Dropping, Pictures])
def test_autocast(build: type[nn.Module], cast: torch.dtype) -> None:
    x = numbers(8, 3, 32, 32) if build is Pictures else numbers(256, 64)
    check(build, x, cast=cast)


@pytest.mark.parametrize("build", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_networks(build: type[nn.Module]) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = build(32, 32, num_layers=2, batch_first=True)
            self.head = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.inner(x)[0])

    check(Recurrent, numbers(16, 12, 32), reruns=False)


def test_a_gradient_scaler() -> None:
    def use(fit: Fit) -> list[Any]:
        torch.manual_seed(0)
        model = fit(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(DEVICE), None)
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler(DEVICE.type)
        for seed in range(3):
            optimizer.zero_grad()
            with torch.autocast(DEVICE.type, torch.float16):
                loss = model(numbers(128, 64, seed=seed)).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return [scaler.get_scale(), *(p.detach().cpu() for p in model.parameters())]

    assert_same(use(lambda model, _: lowtide.fit(model, memory_budget="1GB")), use(plain))


def test_gradients_leave_as_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the device's thread, one by one: each is added, and gone, before the next is made."""
    monkeypatch.setattr(joint, "LEAST_HANDED_OVER", 1)
    monkeypatch.setattr(joint, "PIECES", 10**9)
    layers, width = 8, 512
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))).to(DEVICE)
    lowtide.fit(model, memory_budget="10GB")
    x = numbers(4, width)
    peaks = [peak_of(DEVICE, lambda: model(x).sum().backward(), holding=[model, x]) for _ in range(3)]
    weights = sum(4 * p.numel() for p in model.parameters())
    others = fitted(model).others
    assert peaks[2] - others <= 2 * weights + 3 * 4 * width * width
    assert peaks[2] <= fitted(model).plan.total
    there: list[int] = []
    for p in model.parameters():
        p.grad = None
        p.register_post_accumulate_grad_hook(
            lambda _: there.append(sum(q.grad is not None for q in model.parameters()))
        )
    model(x).sum().backward()
    assert there == list(range(1, 2 * layers + 1))
