"""ResNet of bottleneck blocks: He, Zhang, Ren, Sun 2016, with the stride in the 3 x 3 convolution as in torchvision."""

from __future__ import annotations

from torch import Tensor, nn


class Bottleneck(nn.Module):
    """1 x 1 down to `width`, 3 x 3, 1 x 1 up to four times `width`, and a shortcut."""

    def __init__(self, inner: int, width: int, stride: int = 1, dilation: int = 1) -> None:
        super().__init__()
        outer = 4 * width
        self.conv1 = nn.Conv2d(inner, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, dilation, dilation, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outer, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inner != outer:
            self.downsample = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class Backbone(nn.Module):
    """Everything up to the last block; `dilated` says which of the last three stages dilate instead of striding."""

    def __init__(self, blocks: tuple[int, ...], dilated: tuple[bool, ...] = (False, False, False)) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        stages, inner, dilation = [], 64, 1
        for stage, count in enumerate(blocks):
            width, stride, first = 64 * 2**stage, 2 if stage else 1, dilation
            if stage and dilated[stage - 1]:
                stride, dilation = 1, 2 * dilation
            layers = [Bottleneck(inner, width, stride, first)]
            inner = 4 * width
            layers += [Bottleneck(inner, width, 1, dilation) for _ in range(count - 1)]
            stages.append(nn.Sequential(*layers))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        return self.layer4(self.layer3(self.layer2(self.layer1(x))))


class ResNet(Backbone):
    """The classifier."""

    def __init__(self, blocks: tuple[int, ...], classes: int = 1000) -> None:
        super().__init__(blocks)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(2048, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.avgpool(super().forward(x)).flatten(1))


def resnet50() -> ResNet:
    return ResNet((3, 4, 6, 3))


def resnet152() -> ResNet:
    return ResNet((3, 8, 36, 3))
