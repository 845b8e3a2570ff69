"""VGG: Simonyan and Zisserman 2015; with batch norm, the variant that trains from scratch."""

from __future__ import annotations

from torch import Tensor, nn

WIDTHS_19 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 512, 512, 0, 512, 512, 512, 512, 0)


class VGG(nn.Module):
    """3 x 3 convolutions of these widths, a pooling where the width is 0, and three fully connected layers."""

    def __init__(self, widths: tuple[int, ...], *, norm: bool, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inner = 3
        for width in widths:
            if not width:
                layers.append(nn.MaxPool2d(2))
                continue
            layers.append(nn.Conv2d(inner, width, 3, padding=1))
            layers += [nn.BatchNorm2d(width)] * norm
            layers.append(nn.ReLU(inplace=True))
            inner = width
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def vgg19() -> VGG:
    return VGG(WIDTHS_19, norm=False)


def vgg19_bn() -> VGG:
    return VGG(WIDTHS_19, norm=True)
