"""Training steps whose every trace can be compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from allocated import most_allocated
from lowtide.measure.live import storage_bytes


def trace(model: nn.Module, call: Callable[..., Any], *batch: Tensor, steps: int = 2) -> list[Tensor | None]:
    """Losses, gradients and buffers of some steps, each from a seed of its own, and the generator's state after."""
    found: list[Tensor | None] = []
    for seed in range(steps):
        model.zero_grad()
        torch.manual_seed(seed)
        loss = call(*batch)
        loss.backward()
        found.append(loss.detach())
        found += [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        found += [b.clone() for b in model.buffers()]
    model.zero_grad()
    return [*found, torch.get_rng_state()]


def same(one: list[Tensor | None], other: list[Tensor | None]) -> bool:
    """Whether two traces are the same, bit for bit."""
    assert len(one) == len(other)
    return all(a is b if a is None or b is None else torch.equal(a, b) for a, b in zip(one, other, strict=True))


def measured(model: nn.Module, call: Callable[..., Any], *batch: Tensor) -> int:
    """Bytes at the peak of one more step: what the allocator gave out, and what was there before."""
    there = storage_bytes([*model.parameters(), *model.buffers(), *batch], "cpu")
    peak = most_allocated(lambda: call(*batch).backward())
    model.zero_grad()
    return there + peak
