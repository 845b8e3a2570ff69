"""Networks for images: straight, residual, dense, branching, with long skips, and of attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from zoo.case import Case, classes


def _images(batch: int = 8, side: int = 32, channels: int = 3) -> Tensor:
    return torch.randn(batch, channels, side, side)


def mlp() -> Case:
    """Wide batches through narrow layers: activations outweigh the weights."""
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64), nn.GELU()]
    for _ in range(5):
        layers += [nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(0.1)]
    return Case(nn.Sequential(*layers, nn.Linear(64, 10)), (torch.randn(512, 64),), loss=classes(512, 10))


def vgg() -> Case:
    """Convolutions with in-place ReLUs, max pools, and a classifier with dropout."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    width = 3
    for step in (16, 16, "pool", 32, 32, "pool", 64, 64, "pool"):
        if step == "pool":
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(width, int(step), 3, padding=1), nn.ReLU(inplace=True)]
            width = int(step)
    head = [nn.Linear(64 * 16, 64), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(64, 10)]
    return Case(nn.Sequential(*layers, nn.Flatten(), *head), (_images(),), loss=classes(8, 10))


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1, each with BatchNorm, added to its input; ReLUs in place."""

    def __init__(self, width: int, inner: int, out: int, stride: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(width, inner, 1, bias=False)
        self.spatial = nn.Conv2d(inner, inner, 3, stride, padding=1, bias=False)
        self.expand = nn.Conv2d(inner, out, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(inner), nn.BatchNorm2d(inner), nn.BatchNorm2d(out)])
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or width != out:
            self.shortcut = nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norms[0](self.reduce(x)))
        y = self.relu(self.norms[1](self.spatial(y)))
        y = self.norms[2](self.expand(y))
        y += self.shortcut(x)
        return self.relu(y)


class ResNet(nn.Module):
    """A stem, two stages of two bottlenecks, a mean and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(2)
        )
        self.blocks = nn.Sequential(
            *(Bottleneck(16, 8, 32, 1), Bottleneck(32, 8, 32, 1)),
            *(Bottleneck(32, 16, 64, 2), Bottleneck(64, 16, 64, 1)),
        )
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def resnet() -> Case:
    """Bottlenecks with BatchNorm and in-place ReLUs."""
    torch.manual_seed(0)
    return Case(ResNet(), (_images(),), loss=classes(8, 10))


class DenseLayer(nn.Module):
    """Norm, ReLU, convolution; what it makes is put beside its input."""

    def __init__(self, width: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.Conv2d(width, 4 * growth, 1, bias=False)),
            *(nn.BatchNorm2d(4 * growth), nn.ReLU(inplace=True)),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


def densenet() -> Case:
    """Every layer reads all before it."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False)]
    width = 16
    for block in range(2):
        for _ in range(3):
            layers.append(DenseLayer(width, 8))
            width += 8
        if block == 0:
            layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width // 2, 1), nn.AvgPool2d(2)]
            width //= 2
    layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)]
    return Case(nn.Sequential(*layers), (_images(side=16),), loss=classes(8, 10))


def _convolution(width: int, out: int, size: int | tuple[int, int]) -> nn.Sequential:
    padding = size // 2 if isinstance(size, int) else (size[0] // 2, size[1] // 2)
    return nn.Sequential(nn.Conv2d(width, out, size, padding=padding, bias=False), nn.BatchNorm2d(out), nn.ReLU(True))


class Inception(nn.Module):
    """Four branches of one input, put side by side; one of them factorised."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.plain = _convolution(width, 8, 1)
        self.deep = nn.Sequential(_convolution(width, 8, 1), _convolution(8, 12, 3), _convolution(12, 12, 3))
        self.split = nn.Sequential(_convolution(width, 8, 1), _convolution(8, 8, (1, 5)), _convolution(8, 8, (5, 1)))
        self.pooled = nn.Sequential(nn.AvgPool2d(3, 1, 1), _convolution(width, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.plain(x), self.deep(x), self.split(x), self.pooled(x)], 1)


def inception() -> Case:
    """Blocks of parallel branches."""
    torch.manual_seed(0)
    layers = [_convolution(3, 16, 3), Inception(16), nn.MaxPool2d(2), Inception(32), Inception(32)]
    return Case(
        nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(32, 10)),
        (_images(side=16),),
        loss=classes(8, 10),
    )


class UNet(nn.Module):
    """Two levels down and up again, what was made on the way down put beside what comes up."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.down = nn.ModuleList([self._pair(3, width), self._pair(width, 2 * width)])
        self.bottom = self._pair(2 * width, 4 * width)
        self.up = nn.ModuleList(
            [nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), nn.ConvTranspose2d(2 * width, width, 2, 2)]
        )
        self.merge = nn.ModuleList([self._pair(4 * width, 2 * width), self._pair(2 * width, width)])
        self.head = nn.Conv2d(width, 5, 1)

    @staticmethod
    def _pair(width: int, out: int) -> nn.Sequential:
        return nn.Sequential(_convolution(width, out, 3), _convolution(out, out, 3))

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for down in self.down:
            x = down(x)
            skips.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.bottom(x)
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([skips.pop(), up(x)], 1))
        return self.head(x)


def unet() -> Case:
    """Long skips: what is made first is read last."""
    torch.manual_seed(0)
    labels = torch.randint(5, (4, 32, 32))
    return Case(UNet(), (_images(4),), loss=lambda logits: functional.cross_entropy(logits, labels))


class Attention(nn.Module):
    """Multi-head self-attention by scaled_dot_product_attention."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.dropout, self.causal = heads, dropout, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        rate = self.dropout if self.training else 0.0
        y = functional.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention and a perceptron, each after a norm and added to its input."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0, *, causal: bool = False) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal=causal)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """Patches, a class token, learnt positions and blocks."""

    def __init__(self, width: int = 64, depth: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 65, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, 4, 0.1) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def vit() -> Case:
    """A vision transformer with dropout."""
    torch.manual_seed(0)
    return Case(ViT(), (_images(),), loss=classes(8, 10))
