"""What the generated code calls where a plain call would not do the same again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lowtide import _compat


def take_state(device: torch.device) -> torch.Tensor:
    """The state of the device's default generator."""
    if device.type == "cpu":
        # Detached, so that what counts tensors sees it: the call that makes it is none of PyTorch's operators.
        return torch.get_rng_state().detach()
    return torch.get_device_module(device).get_rng_state(device)


def set_state(device: torch.device, state: torch.Tensor) -> None:
    """Put the device's default generator into a state."""
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)


def draw_again(device: torch.device, state: torch.Tensor, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call with the generator in `state`; afterwards the generator stands where it stood before."""
    present = take_state(device)
    set_state(device, state)
    try:
        return call(*args, **kwargs)
    finally:
        set_state(device, present)


def draw_mask(like: torch.Tensor, keep: float) -> torch.Tensor:
    """A dropout's mask, drawn in place: in the order of memory, where `aten.bernoulli.p` goes by the shape.

    Tracing writes `empty_like(x).bernoulli_(p)` as `bernoulli(empty_like(x), p)`, and the two differ where x is
    transposed.
    """
    return torch.empty_like(like).bernoulli_(keep)


def draw_mask_again(device: torch.device, state: torch.Tensor, like: torch.Tensor, keep: float) -> torch.Tensor:
    """The same mask once more, with the generator in `state`."""
    return draw_again(device, state, draw_mask, like, keep)


def record(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call in grad mode, below autograd: the kernel does all it does in training, and no graph is recorded."""
    with torch.enable_grad(), _compat.below_autograd():
        return call(*args, **kwargs)
