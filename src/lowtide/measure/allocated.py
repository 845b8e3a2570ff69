"""The peak of a step as its device counts it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from lowtide.measure.live import LiveBytes


def peak_of(device: torch.device | str, step: Callable[[], object], *, holding: Iterable[Any] = ()) -> int:
    """The most bytes alive on `device` while `step()` runs.

    On CUDA it is what the caching allocator had handed out, all of the process's tensors, workspace and rounding
    included; `holding` is not needed there. Elsewhere it is the peak of `LiveBytes`, with its limits.
    """
    device = torch.device(device)
    if device.type != "cuda":
        with LiveBytes(device, holding=holding) as live:
            step()
        return live.peak
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device))
