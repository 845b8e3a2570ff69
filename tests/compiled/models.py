"""Small models with what compiled steps must get right, their loss inside."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """A layer of a transformer without attention: norm, wide layer, dropout, residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + functional.dropout(self.narrow(functional.gelu(self.wide(self.norm(x)))), 0.1, self.training)


class Wide(nn.Module):
    """Two products with a function between them."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(torch.tanh(self.wide(x)))


class Total(nn.Module):
    """The loss as a last layer."""

    def forward(self, x: Tensor) -> Tensor:
        return x.square().mean()


class Tied(nn.Module):
    """Blocks with a batch norm between them, under an embedding that is the output layer too."""

    def __init__(self, blocks: int = 2, width: int = 16, words: int = 20) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.norm = nn.BatchNorm1d(width)

    def forward(self, words: Tensor) -> Tensor:
        x = self.norm(self.blocks(self.embed(words)).transpose(1, 2)).transpose(1, 2)
        return functional.cross_entropy((x @ self.embed.weight.T).flatten(0, 1), words.flatten())


class RunningMean(nn.Module):
    """Reads a buffer that it then writes to: backward needs it as it was."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("mean", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        out = (y * self.mean.exp()).square().sum()
        self.mean.mul_(0.5).add_(y.detach().mean(0))
        return out


class Broken(nn.Module):
    """Two graphs with a break between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(6)))
        self.second = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(6)), Total())

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x)
