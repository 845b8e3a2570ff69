"""Random small models: branches and skips, views, writes in place, chance, running statistics, tied weights."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

ROWS, WIDTH = 6, 8


class Layer(nn.Module):
    """From one or more tensors of ROWS x WIDTH to one more."""

    needs = 1


class Linear(Layer):
    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=rng.random() < 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class Pointwise(Layer):
    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.function = rng.choice([torch.tanh, torch.relu, functional.gelu, functional.silu, torch.sigmoid])

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class InPlace(Layer):
    """Writes to what it made, and through a view of it."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.late = rng.random() < 0.5

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        first = y[:, :3]
        if self.late:
            y.add_(x.sin())
        first.add_(1.0)
        y.t()[2].mul_(x[0, 0])
        return y + first.sum()


class Dropout(Layer):
    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.dropout = nn.Dropout(rng.choice([0.1, 0.5]))

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(x)


class Noise(Layer):
    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.draw = rng.choice([torch.rand_like, torch.randn_like])

    def forward(self, x: Tensor) -> Tensor:
        return x * self.draw(x)


class BatchNorm(Layer):
    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH, track_running_stats=rng.random() < 0.8)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


class Normed(Layer):
    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH) if rng.random() < 0.5 else nn.Softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


class Running(Layer):
    """A buffer that is read, written to by hand, and read again."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.register_buffer("mean", torch.randn(WIDTH))
        self.again = rng.random() < 0.5

    def forward(self, x: Tensor) -> Tensor:
        y = x * (self.mean + 1)
        self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return y * (self.mean + 1) if self.again else torch.tanh(y)


class Counter(Layer):
    """A buffer that is only counted up, beside one that scales."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scale", torch.rand(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x * self.scale / (self.count + 1)


class Views(Layer):
    """Slices, transposes, chunks and reshapes, put together again."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.way = rng.randrange(6)

    def forward(self, x: Tensor) -> Tensor:
        if self.way == 0:
            a, b = x.chunk(2, dim=1)
            return torch.cat([b * a, a], dim=1)
        if self.way == 1:
            return x.t().contiguous().t()
        if self.way == 2:
            return torch.stack([row * 2 for row in x.unbind(0)][::-1])
        if self.way == 3:
            return x.reshape(WIDTH, ROWS).t().reshape(ROWS, WIDTH) + x[1:2].expand(ROWS, WIDTH)
        if self.way == 4:
            a, b, c = x.split([2, 2, 4], dim=1)
            return torch.cat([c.tanh(), a + b, b], dim=1)
        return x[:, ::2].repeat_interleave(2, dim=1).view(2, 3, WIDTH).transpose(0, 1).reshape(ROWS, WIDTH)


class Sorted(Layer):
    """Operators with several results, of which not all are used."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.way = rng.randrange(4)

    def forward(self, x: Tensor) -> Tensor:
        if self.way == 0:
            best, _ = x.max(dim=1, keepdim=True)
            return x - best
        if self.way == 1:
            return x.sort(dim=1)[0]
        if self.way == 2:
            best, places = x.topk(4, dim=1)
            return x.scatter(1, places, best.tanh())
        deviation, mean = torch.std_mean(x, dim=1, keepdim=True)
        return (x - mean) / (deviation + 1)


class Convolution(Layer):
    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(2, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(x.view(ROWS, 2, 4)).view(ROWS, WIDTH)


class Frozen(Layer):
    """Part of it without gradients."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = (x @ self.weight).sigmoid()
        return x * y + x @ self.weight.t()


class Transposed(Layer):
    """Chance on tensors that lie in memory in another order."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.way = rng.randrange(3)

    def forward(self, x: Tensor) -> Tensor:
        y = x.tanh().t()
        if self.way == 0:
            return functional.dropout(y, 0.3).t()
        return (torch.rand_like(y) * y if self.way == 1 else torch.empty_like(y).normal_() + y).t()


class Squash(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(y := x.sigmoid())
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return gradient * y * (1 - y)


class Custom(Layer):
    def __init__(self, rng: random.Random) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return Squash.apply(x)


class Checkpointed(Layer):
    """A part that is checkpointed already, with chance inside."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.2))

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.body, x, use_reentrant=False)


class Hooked(Layer):
    """A hook on a tensor, and a parametrized weight."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        if rng.random() < 0.5:
            nn.utils.parametrizations.weight_norm(self.linear)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        y.register_hook(lambda gradient: gradient * 0.5)
        return y


class Recurrent(Layer):
    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.network = rng.choice([nn.GRU, nn.LSTM, nn.RNN])(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x.view(2, 3, WIDTH))[0].reshape(ROWS, WIDTH)


class Spectrum(Layer):
    """Complex numbers on the way."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(x) * torch.arange(1.0, 6.0), n=WIDTH)


class Half(Layer):
    """Part of it in half precision."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.linear(x).float()


class Add(Layer):
    needs = 2

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.times = rng.random() < 0.5

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x * y if self.times else x + y


class Concatenate(Layer):
    needs = 2

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.linear(torch.cat([x, y], dim=1))


class Attention(Layer):
    needs = 3

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.fused = rng.random() < 0.5
        self.dropout = rng.choice([0.0, 0.2])

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        q, k, v = (t.view(1, ROWS, 2, 4).transpose(1, 2) for t in (x, y, z))
        if self.fused:
            mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)
        else:
            mixed = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        return mixed.transpose(1, 2).reshape(ROWS, WIDTH)


KINDS: list[type[Layer]] = [
    *(Linear, Linear, Pointwise, Pointwise, InPlace, Dropout, Noise, BatchNorm, Normed, Running, Counter, Views, Views),
    *(Sorted, Convolution, Frozen, Add, Add, Concatenate, Attention),
    *(Transposed, Custom, Checkpointed, Hooked, Recurrent, Spectrum, Half),
]


class Model(nn.Module):
    """Layers that read any of what was made before; some stand twice. Returns its loss, alone or with other outputs."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = random.Random(seed)
        torch.manual_seed(seed)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList()
        self.sources: list[tuple[int, ...]] = []
        for i in range(rng.randint(2, 7)):
            layer = rng.choice(list(self.layers)) if i > 1 and rng.random() < 0.15 else rng.choice(KINDS)(rng)
            # Mostly the latest, so that the model is deep.
            self.sources.append(tuple(rng.choice([i, i, rng.randint(0, i)]) for _ in range(layer.needs)))
            self.layers.append(layer)
        self.outputs = rng.choice([0, 0, 0, 1, 2, 3])
        self.picked = rng.randint(0, len(self.layers))

    def forward(self, x: Tensor) -> Any:
        made = [self.first(x)]
        for layer, sources in zip(self.layers, self.sources, strict=True):
            made.append(layer(*[made[i] for i in sources]))
        loss = made[-1].square().mean() + made[self.picked].abs().sum()
        if self.outputs == 0:
            return loss
        if self.outputs == 1:
            return loss, made[self.picked]
        if self.outputs == 2:
            return {"loss": loss, "logits": made[-1][:, 1:3], "all": made[-1].detach() * 2}
        return loss, [made[-1], made[self.picked].t()]


def batch(seed: int) -> Tensor:
    """What the model is called with; one in four wants a gradient."""
    torch.manual_seed(seed + 1)
    return torch.randn(ROWS, WIDTH, requires_grad=seed % 4 == 0)
