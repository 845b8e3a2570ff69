"""The models that everything is measured on, each with its batch and its loss.

`MODELS[name]()` makes them on the default device: within `torch.device("meta")` shapes only, within
`torch.device("cuda")` the thing itself. The architectures are torchvision's, timm's and transformers' own, written out
here where the package is not a dependency.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from models import googlenet, inception
from models.deeplab import DeepLab
from models.densenet import densenet161, densenet201
from models.language import gpt2, llama, t5_large, tokens
from models.nasnet import NASNet
from models.resnet import resnet50, resnet152
from models.unet import UNet
from models.vgg import vgg19, vgg19_bn
from models.vit import vit_large


@dataclass(frozen=True)
class Workload:
    """What a training script has before its first step.

    model   in training mode
    batch   what it is called with, by keyword
    loss    from what the model returns to a scalar
    """

    model: nn.Module
    batch: dict[str, Tensor]
    loss: Callable[[Any], Tensor]


def images(
    model: Callable[[], nn.Module],
    batch: int,
    side: int = 224,
    *,
    dtype: torch.dtype = torch.float32,
    classes: int = 1000,
    dense: bool = False,
    loss: Callable[[Any, Tensor], Tensor] = cross_entropy,
) -> Callable[[], Workload]:
    """A classifier of images, or with `dense` of their pixels; the loss is worked out outside."""

    def make() -> Workload:
        made = model().to(dtype).train()
        labels = torch.randint(classes, (batch, side, side) if dense else (batch,))
        return Workload(made, {"x": torch.randn(batch, 3, side, side, dtype=dtype)}, lambda out: loss(out, labels))

    return make


def text(model: Callable[[], nn.Module], vocabulary: int, batch: int, length: int) -> Callable[[], Workload]:
    """A language model in bfloat16, which works out its loss itself."""

    def make() -> Workload:
        made = model().to(torch.bfloat16).train()
        return Workload(made, tokens(vocabulary, batch, length), lambda out: out.loss)

    return make


MODELS: dict[str, Callable[[], Workload]] = {
    "gpt2-12": text(lambda: gpt2(12, 1024, 16), 50257, 16, 1024),
    "gpt2-48": text(lambda: gpt2(48, 1600, 25), 50257, 16, 1024),
    "llama-16": text(lambda: llama(16, 2048, 5632, 32, 8), 32000, 4, 4096),
    "llama-80": text(lambda: llama(80, 8192, 28672, 64, 8), 32000, 4, 4096),
    "llama-184": text(lambda: llama(184, 4096, 11008, 32, 8), 32000, 1, 4096),
    "t5-large": text(t5_large, 32128, 16, 512),
    "resnet50": images(resnet50, 128),
    "resnet152": images(resnet152, 128),
    "vgg19": images(vgg19, 128),
    "vgg19-bn": images(vgg19_bn, 128),
    "densenet161": images(densenet161, 64),
    "densenet201": images(densenet201, 64),
    "googlenet": images(googlenet.GoogLeNet, 128, loss=googlenet.loss),
    "inception-v3": images(inception.InceptionV3, 128, 299, loss=inception.loss),
    "nasnet-cifar": images(NASNet, 64, 32, classes=10),
    "deeplab-v3": images(DeepLab, 16, 512, classes=21, dense=True),
    "unet": images(UNet, 16, 512, classes=2, dense=True),
    "vit-large": images(vit_large, 128, dtype=torch.bfloat16),
}
