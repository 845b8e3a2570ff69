"""One small model with a batch: all that a training step needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map


@dataclass(frozen=True)
class Case:
    """A model, a batch, and how to get the loss.

    model        in training mode, on the CPU, from a fixed seed
    args         what the model is called with
    kwargs       and by keyword
    loss         takes what the model returns to a scalar
    loss_inside  whether the model works out its loss itself, so that `loss` only picks it
    """

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    loss: Callable[[Any], torch.Tensor] = lambda output: output.float().square().mean()
    loss_inside: bool = False

    def step(self, call: Callable[..., Any] | None = None) -> torch.Tensor:
        """The loss after one forward and backward pass; `call` stands in for the model, compiled for instance."""
        call = self.model if call is None else call
        loss = self.loss(call(*self.args, **self.kwargs))
        loss.backward()
        return loss.detach()

    @property
    def targets(self) -> list[torch.Tensor]:
        """Tensors that the loss holds and the model never sees."""
        return [tensor for tensor in _closed_over(self.loss) if isinstance(tensor, torch.Tensor)]

    def to(self, device: torch.device) -> Case:
        """The same case on another device."""
        for tensor in self.targets:
            tensor.data = tensor.data.to(device)
        args, kwargs = tree_map(
            lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf, (self.args, self.kwargs)
        )
        return replace(self, model=self.model.to(device), args=args, kwargs=kwargs)


def _closed_over(function: Any) -> list[Any]:
    found = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    return found + [inner for item in found if callable(item) for inner in _closed_over(item)]


def classes(count: int, number: int) -> Callable[[Any], torch.Tensor]:
    """Cross entropy of `count` logits against the classes 0, 1, 2, ... in turn."""
    target = torch.arange(count) % number
    return lambda logits: nn.functional.cross_entropy(logits.flatten(0, -2), target)
