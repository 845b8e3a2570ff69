"""Inception v3: Szegedy et al. 2016, with its auxiliary head, as torchvision has it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from models.convolution import ConvNorm


class Branches(nn.ModuleList):
    """Side by side on one input, put together by channels."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self], 1)


def row(inner: int, *steps: tuple[object, ...]) -> nn.Sequential:
    """Convolutions in a row, each (width, kernel, padding) or (width, kernel, padding, stride)."""
    layers = []
    for outer, kernel, padding, *stride in steps:
        layers.append(ConvNorm(inner, outer, kernel, padding=padding, stride=stride[0] if stride else 1))
        inner = outer
    return nn.Sequential(*layers)


def pooled(inner: int, outer: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), ConvNorm(inner, outer, 1))


def block_a(inner: int, pool: int) -> Branches:
    five = row(inner, (48, 1, 0), (64, 5, 2))
    three = row(inner, (64, 1, 0), (96, 3, 1), (96, 3, 1))
    return Branches([ConvNorm(inner, 64, 1), five, three, pooled(inner, pool)])


def block_b(inner: int) -> Branches:
    three = row(inner, (64, 1, 0), (96, 3, 1), (96, 3, 0, 2))
    return Branches([row(inner, (384, 3, 0, 2)), three, nn.MaxPool2d(3, 2)])


def block_c(inner: int, width: int) -> Branches:
    flat, tall = ((1, 7), (0, 3)), ((7, 1), (3, 0))
    once = row(inner, (width, 1, 0), (width, *flat), (192, *tall))
    twice = row(inner, (width, 1, 0), (width, *tall), (width, *flat), (width, *tall), (192, *flat))
    return Branches([ConvNorm(inner, 192, 1), once, twice, pooled(inner, 192)])


def block_d(inner: int) -> Branches:
    three = row(inner, (192, 1, 0), (320, 3, 0, 2))
    seven = row(inner, (192, 1, 0), (192, (1, 7), (0, 3)), (192, (7, 1), (3, 0)), (192, 3, 0, 2))
    return Branches([three, seven, nn.MaxPool2d(3, 2)])


def block_e(inner: int) -> Branches:
    def split() -> Branches:
        return Branches([row(384, (384, (1, 3), (0, 1))), row(384, (384, (3, 1), (1, 0)))])

    three = nn.Sequential(row(inner, (384, 1, 0)), split())
    double = nn.Sequential(row(inner, (448, 1, 0), (384, 3, 1)), split())
    return Branches([ConvNorm(inner, 320, 1), three, double, pooled(inner, 192)])


class InceptionV3(nn.Module):
    """Returns the logits of the head and of the auxiliary head."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.first = nn.Sequential(
            row(3, (32, 3, 0, 2), (32, 3, 0), (64, 3, 1)),
            nn.MaxPool2d(3, 2),
            row(64, (80, 1, 0), (192, 3, 0)),
            nn.MaxPool2d(3, 2),
            block_a(192, 32),
            block_a(256, 64),
            block_a(288, 64),
            block_b(288),
            block_c(768, 128),
            block_c(768, 160),
            block_c(768, 160),
            block_c(768, 192),
        )
        self.auxiliary = nn.Sequential(
            nn.AvgPool2d(5, 3),
            row(768, (128, 1, 0), (768, 5, 0)),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(768, classes),
        )
        self.last = nn.Sequential(
            block_d(768),
            block_e(1280),
            block_e(2048),
            nn.AdaptiveAvgPool2d(1),
            nn.Dropout(),
            nn.Flatten(),
            nn.Linear(2048, classes),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first(x)
        return self.last(x), self.auxiliary(x)


def loss(outputs: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
    """The auxiliary head counts 0.4."""
    main, auxiliary = (cross_entropy(output, labels) for output in outputs)
    return main + 0.4 * auxiliary
