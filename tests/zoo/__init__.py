"""Small models of the real shapes: each trains a step on the CPU in some tens of milliseconds."""

from __future__ import annotations

from collections.abc import Callable

from zoo import images, odd, text
from zoo.case import Case

MODELS: dict[str, Callable[[], Case]] = {
    case.__name__: case
    for case in (
        *(images.mlp, images.vgg, images.resnet, images.densenet, images.inception, images.unet, images.vit),
        *(text.gpt2, text.llama, text.t5, text.lstm),
        *(odd.moe, odd.moe_routed, odd.lora, odd.running_mean, odd.custom_function, odd.checkpointed),
        *(odd.loss_in_dict, odd.nested_outputs, odd.nested_arguments),
    )
}

__all__ = ["MODELS", "Case"]
