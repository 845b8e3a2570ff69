"""Convolution, batch norm and ReLU in a row, the brick of several of these networks."""

from __future__ import annotations

from torch import Tensor, nn


class ConvNorm(nn.Module):
    """`eps` is the Inception family's own."""

    def __init__(
        self, inner: int, outer: int, kernel: int | tuple[int, int], *, eps: float = 1e-3, **more: object
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inner, outer, kernel, bias=False, **more)
        self.bn = nn.BatchNorm2d(outer, eps=eps)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.bn(self.conv(x)))
