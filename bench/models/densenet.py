"""DenseNet: Huang, Liu, van der Maaten, Weinberger 2017. Every layer reads all that its block has made before."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class DenseLayer(nn.Module):
    """Norm, ReLU, 1 x 1 convolution to four times `growth`, and again with 3 x 3 to `growth`."""

    def __init__(self, inner: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inner)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(inner, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, features: list[Tensor]) -> Tensor:
        narrow = self.conv1(self.relu1(self.norm1(torch.cat(features, 1))))
        return self.conv2(self.relu2(self.norm2(narrow)))


class DenseBlock(nn.ModuleList):
    """Layers, each on what all before it have made."""

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self:
            features.append(layer(features))
        return torch.cat(features, 1)


def transition(inner: int) -> nn.Sequential:
    """Half the channels, half the side."""
    return nn.Sequential(
        nn.BatchNorm2d(inner), nn.ReLU(inplace=True), nn.Conv2d(inner, inner // 2, 1, bias=False), nn.AvgPool2d(2)
    )


class DenseNet(nn.Module):
    """Four blocks of so many layers."""

    def __init__(self, growth: int, blocks: tuple[int, ...], width: int, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        ]
        for i, count in enumerate(blocks):
            layers.append(DenseBlock(DenseLayer(width + j * growth, growth) for j in range(count)))
            width += count * growth
            if i + 1 < len(blocks):
                layers.append(transition(width))
                width //= 2
        self.features = nn.Sequential(*layers, nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1))
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


def densenet161() -> DenseNet:
    return DenseNet(48, (6, 12, 36, 24), 96)


def densenet201() -> DenseNet:
    return DenseNet(32, (6, 12, 48, 32), 64)
