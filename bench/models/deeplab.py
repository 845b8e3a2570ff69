"""DeepLabV3 on a dilated ResNet-50: Chen, Papandreou, Schroff, Adam 2017, as torchvision has it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from models.convolution import ConvNorm
from models.resnet import Backbone


class Pyramid(nn.Module):
    """Convolutions of several dilations and the picture's mean, side by side."""

    def __init__(self, inner: int, rates: tuple[int, ...] = (12, 24, 36), width: int = 256) -> None:
        super().__init__()
        self.branches = nn.ModuleList([ConvNorm(inner, width, 1, eps=1e-5)])
        self.branches.extend(ConvNorm(inner, width, 3, eps=1e-5, padding=r, dilation=r) for r in rates)
        self.mean = nn.Sequential(nn.AdaptiveAvgPool2d(1), ConvNorm(inner, width, 1, eps=1e-5))
        self.project = nn.Sequential(ConvNorm((len(rates) + 2) * width, width, 1, eps=1e-5), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Tensor:
        found = [branch(x) for branch in self.branches]
        found.append(interpolate(self.mean(x), x.shape[-2:], mode="bilinear", align_corners=False))
        return self.project(torch.cat(found, 1))


class DeepLab(nn.Module):
    """Logits for every pixel."""

    def __init__(self, classes: int = 21) -> None:
        super().__init__()
        self.backbone = Backbone((3, 4, 6, 3), (False, True, True))
        self.classifier = nn.Sequential(
            Pyramid(2048), ConvNorm(256, 256, 3, eps=1e-5, padding=1), nn.Conv2d(256, classes, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return interpolate(self.classifier(self.backbone(x)), x.shape[-2:], mode="bilinear", align_corners=False)
