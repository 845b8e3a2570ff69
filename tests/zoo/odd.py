"""Models that do one thing each that a capture of the step can get wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from zoo.case import Case, classes
from zoo.images import Block


class Experts(nn.Module):
    """A router gives each token to its two best perceptrons of four, and adds what they make, weighted."""

    def __init__(self, width: int, number: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, number)
        self.up = nn.Parameter(torch.randn(number, width, 2 * width) / width**0.5)
        self.down = nn.Parameter(torch.randn(number, 2 * width, width) / (2 * width) ** 0.5)

    def weights(self, x: Tensor) -> Tensor:
        """A weight for each token and expert, zero for those not chosen."""
        best, chosen = self.router(x).topk(2, dim=-1)
        places = functional.one_hot(chosen, self.router.out_features).to(x.dtype)
        return torch.einsum("bkn,bk->bn", places, best.softmax(-1))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        inner = functional.silu(torch.einsum("bd,ndf->nbf", flat, self.up))
        outer = torch.einsum("nbf,nfd->nbd", inner, self.down)
        return torch.einsum("nbd,bn->bd", outer, self.weights(flat)).view_as(x)


class RoutedExperts(Experts):
    """The same, but each expert runs on its own tokens only, whose number depends on the data."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        weights = self.weights(flat)
        total = torch.zeros_like(flat)
        for expert in range(len(self.up)):
            mask = weights[:, expert] > 0
            if mask.any():
                rows = mask.nonzero().squeeze(1)
                made = functional.silu(flat[rows] @ self.up[expert]) @ self.down[expert]
                total = total.index_add(0, rows, made * weights[rows, expert, None])
        return total.view_as(x)


class Mixture(nn.Module):
    """Blocks of attention, each with experts after it."""

    def __init__(self, experts: type[Experts], width: int = 32) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, 4, causal=True) for _ in range(2))
        self.experts = nn.ModuleList(experts(width) for _ in range(2))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        for block, experts in zip(self.blocks, self.experts, strict=True):
            x = block(x)
            x = x + experts(x)
        return self.head(x)


def moe() -> Case:
    """Top-two routing with fixed shapes: every expert sees every token."""
    torch.manual_seed(0)
    return Case(Mixture(Experts), (torch.randn(8, 16, 32),), loss=classes(8 * 16, 10))


def moe_routed() -> Case:
    """Top-two routing with shapes and branches that depend on the data."""
    torch.manual_seed(0)
    return Case(Mixture(RoutedExperts), (torch.randn(8, 16, 32),), loss=classes(8 * 16, 10))


class Adapter(nn.Module):
    """A frozen layer with a small trainable one beside it."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base
        self.dropout = nn.Dropout(0.1)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2 * self.up(self.down(self.dropout(x)))


def lora() -> Case:
    """A frozen base with low-rank adapters: few gradients, all activations."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), *(Block(64, 4) for _ in range(3)), nn.Linear(64, 10))
    model.requires_grad_(False)
    for block in model[1:-1]:
        block.attention.qkv = Adapter(block.attention.qkv)
        block.mlp[0] = Adapter(block.mlp[0])
    return Case(model, (torch.randn(8, 32, 32),), loss=classes(8 * 32, 10))


class RunningMean(nn.Module):
    """Takes off a running mean, which it then moves. The gain's gradient needs what was left with the old mean."""

    mean: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.ones(width))
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = (x - self.mean) * self.gain
        if self.training:
            self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return y


def running_mean() -> Case:
    """A buffer that is read and then updated in the same forward."""
    torch.manual_seed(0)
    layers = [nn.Linear(32, 32), RunningMean(32), nn.Tanh(), nn.Linear(32, 32), RunningMean(32), nn.Linear(32, 10)]
    return Case(nn.Sequential(*layers), (torch.randn(256, 32),), loss=classes(256, 10))


class Squash(torch.autograd.Function):
    """x / (1 + |x|), saving its result only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x / (1 + x.abs())
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return gradient * (1 - y.abs()).square()


class Squashing(nn.Module):
    """A perceptron with `Squash` between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = Squash.apply(layer(x))
        return self.head(x)


def custom_function() -> Case:
    """A torch.autograd.Function with a backward of its own."""
    torch.manual_seed(0)
    return Case(Squashing(), (torch.randn(256, 32),), loss=classes(256, 10))


class Checkpointed(nn.Module):
    """Blocks with dropout, of which every other is checkpointed by its author."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(32, 4, 0.1) for _ in range(4))
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=False) if number % 2 else block(x)
        return self.head(x)


def checkpointed() -> Case:
    """torch.utils.checkpoint in the model already."""
    torch.manual_seed(0)
    return Case(Checkpointed(), (torch.randn(8, 32, 32),), loss=classes(8 * 32, 10))


class LossInside(nn.Module):
    """Works out its loss from two parts and returns a dict with it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Any]:
        hidden = self.body(x)
        logits = self.head(hidden)
        loss = functional.cross_entropy(logits, labels)
        penalty = hidden.square().mean()
        return {"loss": loss + 0.01 * penalty, "logits": logits, "parts": {"penalty": penalty.detach()}}


def loss_in_dict() -> Case:
    """The loss comes in a dict, beside logits that nobody differentiates."""
    torch.manual_seed(0)
    return Case(
        LossInside(),
        (torch.randn(256, 32),),
        {"labels": torch.arange(256) % 10},
        loss=lambda output: output["loss"],
        loss_inside=True,
    )


@dataclass
class Moments:
    """Two tensors of which neither takes part in the loss."""

    mean: Tensor
    largest: Tensor


@dataclass
class Answer:
    """What `Structured` returns: some of it with a gradient, some without, some not a tensor."""

    logits: Tensor
    hidden: tuple[Tensor, ...]
    moments: Moments
    choice: Tensor
    name: str


class Structured(nn.Module):
    """Returns nested dataclasses."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Answer:
        hidden = []
        for layer in self.layers:
            x = torch.tanh(layer(x))
            hidden.append(x)
        logits = self.head(x)
        with torch.no_grad():
            moments = Moments(logits.mean(), logits.amax())
        return Answer(logits, tuple(hidden), moments, logits.argmax(-1), "structured")


def nested_outputs() -> Case:
    """Nested dataclasses as output; the loss reads two of the tensors."""
    torch.manual_seed(0)
    cross_entropy = classes(256, 10)
    return Case(
        Structured(),
        (torch.randn(256, 32),),
        loss=lambda answer: cross_entropy(answer.logits) + 0.1 * answer.hidden[1].square().mean(),
    )


class Arguments(nn.Module):
    """Takes nested containers, None, flags and keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(32, 32), nn.Linear(16, 32)
        self.head = nn.Linear(32, 10)

    def forward(
        self,
        pair: tuple[Tensor, dict[str, Tensor]],
        mask: Tensor | None,
        *,
        scale: float = 1.0,
        extra: list[Tensor | None] | None = None,
        gate: bool = False,
    ) -> Tensor:
        first, rest = pair
        x = torch.relu(self.left(first) + self.right(rest["right"])) * scale
        if mask is not None:
            x = x * mask
        for each in extra or []:
            if each is not None:
                x = x + each
        return self.head(torch.sigmoid(x) * x if gate else x)


def nested_arguments() -> Case:
    """Nested, None and keyword arguments; one that is a leaf wanting a gradient."""
    torch.manual_seed(0)
    leaf = torch.randn(256, 32, requires_grad=True)
    return Case(
        Arguments(),
        ((torch.randn(256, 32), {"right": torch.randn(256, 16)}), None),
        {"scale": 0.5, "extra": [None, leaf], "gate": True},
        loss=classes(256, 10),
    )
