"""U-Net: Ronneberger, Fischer, Brox 2015, padded and with batch norm, as it is trained today."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn


def double(inner: int, outer: int) -> nn.Sequential:
    """Two 3 x 3 convolutions."""
    layers: list[nn.Module] = []
    for width in (inner, outer):
        layers += [nn.Conv2d(width, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """`depth` levels down and up again, with a skip across at every level."""

    def __init__(self, depth: int = 4, width: int = 64, classes: int = 2) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.first = double(3, width)
        self.down = nn.ModuleList(double(a, b) for a, b in pairwise(widths))
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * a, a, 2, 2) for a in reversed(widths[:-1]))
        self.across = nn.ModuleList(double(2 * a, a) for a in reversed(widths[:-1]))
        self.last = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        skips = []
        for down in self.down:
            skips.append(x)
            x = down(self.pool(x))
        for up, across in zip(self.up, self.across):
            x = across(torch.cat([skips.pop(), up(x)], 1))
        return self.last(x)
