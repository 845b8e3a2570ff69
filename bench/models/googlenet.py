"""GoogLeNet: Szegedy et al. 2015, with batch norm and both auxiliary heads, as torchvision has it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from models.convolution import ConvNorm

# Per block: 1 x 1; 3 x 3 after its reduction; another 3 x 3 after its; after pooling. None halves the side.
BLOCKS = (
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    None,
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    None,
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)
AUXILIARY_BEFORE = (4, 7)


class Inception(nn.Module):
    """Four branches side by side."""

    def __init__(self, inner: int, plain: int, less: int, three: int, least: int, five: int, pooled: int) -> None:
        super().__init__()
        self.branch1 = ConvNorm(inner, plain, 1)
        self.branch2 = nn.Sequential(ConvNorm(inner, less, 1), ConvNorm(less, three, 3, padding=1))
        self.branch3 = nn.Sequential(ConvNorm(inner, least, 1), ConvNorm(least, five, 3, padding=1))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, 1, 1, ceil_mode=True), ConvNorm(inner, pooled, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)


def auxiliary(inner: int, classes: int) -> nn.Sequential:
    """A head half-way."""
    return nn.Sequential(
        nn.AdaptiveAvgPool2d(4),
        ConvNorm(inner, 128, 1),
        nn.Flatten(),
        nn.Linear(2048, 1024),
        nn.ReLU(inplace=True),
        nn.Dropout(0.7),
        nn.Linear(1024, classes),
    )


class GoogLeNet(nn.Module):
    """Returns the logits of the head and of both auxiliary heads."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            ConvNorm(3, 64, 7, stride=2, padding=3),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            ConvNorm(64, 64, 1),
            ConvNorm(64, 192, 3, padding=1),
            nn.MaxPool2d(3, 2, ceil_mode=True),
        )
        self.blocks = nn.ModuleList()
        self.heads = nn.ModuleList()
        inner = 192
        for place, block in enumerate(BLOCKS):
            if place in AUXILIARY_BEFORE:
                self.heads.append(auxiliary(inner, classes))
            self.blocks.append(Inception(inner, *block) if block else nn.MaxPool2d(3, 2, ceil_mode=True))
            inner = block[0] + block[2] + block[4] + block[5] if block else inner
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(inner, classes))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = self.stem(x)
        found = []
        for place, block in enumerate(self.blocks):
            if place in AUXILIARY_BEFORE:
                found.append(self.heads[len(found)](x))
            x = block(x)
        return self.head(x), *found


def loss(outputs: tuple[Tensor, ...], labels: Tensor) -> Tensor:
    """Each auxiliary head counts 0.3."""
    first, *others = (cross_entropy(output, labels) for output in outputs)
    return first + 0.3 * sum(others)
