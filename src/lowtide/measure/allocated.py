"""The memory of a step as its device counts it."""

from __future__ import annotations

import functools
import threading
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


def allocated(device: torch.device) -> int:
    """Bytes that the caching allocator of a CUDA device has handed out, rounding included; 0 on other devices.

    What every training step on the device needs is there from then on: the workspaces that cuBLAS keeps for the stream,
    one for the thread that calls and one for autograd's.
    """
    if device.type != "cuda":
        return 0
    _take_workspaces(device, threading.get_ident(), torch.cuda.current_stream(device).cuda_stream)
    return int(torch.cuda.memory_allocated(device))


@functools.cache
def _take_workspaces(device: torch.device, thread: int, stream: int) -> None:
    with torch.enable_grad(), torch.autocast(device.type, enabled=False):
        x = torch.ones(16, 16, device=device, requires_grad=True)
        torch.nn.functional.linear(x @ x, x, x[0]).sum().backward()
