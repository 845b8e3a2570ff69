"""NASNet-A for small pictures: Zoph, Vasudevan, Shlens, Le 2018. Cells read the two cells before them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def separable(inner: int, outer: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """ReLU, depthwise and pointwise convolution, norm; twice."""
    layers: list[nn.Module] = []
    for width, step in ((inner, stride), (outer, 1)):
        layers += [
            nn.ReLU(),
            nn.Conv2d(width, width, kernel, step, kernel // 2, groups=width, bias=False),
            nn.Conv2d(width, outer, 1, bias=False),
            nn.BatchNorm2d(outer),
        ]
    return nn.Sequential(*layers)


def squeeze(inner: int, outer: int, stride: int = 1) -> nn.Sequential:
    """Another number of channels, and half the side with stride 2."""
    return nn.Sequential(nn.ReLU(), nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))


def mean(stride: int = 1) -> nn.AvgPool2d:
    return nn.AvgPool2d(3, stride, 1, count_include_pad=False)


class Normal(nn.Module):
    """Five pairs of branches on this cell's input and the one before, all put together."""

    def __init__(self, before: int, inner: int, width: int, *, halved: bool) -> None:
        super().__init__()
        self.adjust = squeeze(before, width, 2 if halved else 1)
        self.enter = squeeze(inner, width)
        self.five_1, self.three_1 = separable(width, width, 5), separable(width, width, 3)
        self.five_2, self.three_2 = separable(width, width, 5), separable(width, width, 3)
        self.three_3 = separable(width, width, 3)
        self.mean = mean()

    def forward(self, before: Tensor, now: Tensor) -> Tensor:
        p, h = self.adjust(before), self.enter(now)
        pairs = [
            self.five_1(h) + self.three_1(p),
            self.five_2(p) + self.three_2(p),
            self.mean(h) + p,
            self.mean(p) + self.mean(p),
            self.three_3(h) + h,
        ]
        return torch.cat([p, *pairs], 1)


class Reduction(nn.Module):
    """The same with stride 2, and two pairs on results of others."""

    def __init__(self, before: int, inner: int, width: int) -> None:
        super().__init__()
        self.adjust = squeeze(before, width)
        self.enter = squeeze(inner, width)
        self.five = separable(width, width, 5, 2)
        self.seven_1, self.seven_2 = separable(width, width, 7, 2), separable(width, width, 7, 2)
        self.five_2 = separable(width, width, 5, 2)
        self.three = separable(width, width, 3)
        self.most, self.mean, self.flat = nn.MaxPool2d(3, 2, 1), mean(2), mean()

    def forward(self, before: Tensor, now: Tensor) -> Tensor:
        p, h = self.adjust(before), self.enter(now)
        first = self.five(h) + self.seven_1(p)
        second = self.most(h) + self.seven_2(p)
        third = self.mean(h) + self.five_2(p)
        fourth = self.most(h) + self.three(first)
        fifth = self.flat(first) + second
        return torch.cat([second, third, fourth, fifth], 1)


class NASNet(nn.Module):
    """Three stacks of `cells` normal cells with a reduction before the second and the third."""

    def __init__(self, cells: int = 6, width: int = 32, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 3 * width, 3, padding=1, bias=False), nn.BatchNorm2d(3 * width))
        self.cells = nn.ModuleList()
        before = inner = 3 * width
        halved = False
        for stack in range(3):
            if stack:
                width *= 2
                self.cells.append(Reduction(before, inner, width))
                before, inner, halved = inner, 4 * width, True
            for _ in range(cells):
                self.cells.append(Normal(before, inner, width, halved=halved))
                before, inner, halved = inner, 6 * width, False
        self.head = nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, classes))

    def forward(self, x: Tensor) -> Tensor:
        before = now = self.stem(x)
        for cell in self.cells:
            before, now = now, cell(before, now)
        return self.head(now)
