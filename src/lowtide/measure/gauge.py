"""What one training step takes, as it is carried out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch import nn

from lowtide.check import Measurement
from lowtide.measure.live import LiveBytes, storage_bytes, tensors_of


class Gauge(Protocol):
    """Measures one step after another. A step begins with `begin`; `forward` and `backward` are around each graph's."""

    def begin(self) -> None:
        """A step begins."""

    def forward(self, inputs: Any) -> AbstractContextManager[Any]:
        """Around what a graph does in forward."""

    def backward(self, saved: Any) -> AbstractContextManager[Any]:
        """Around what a graph does in backward."""

    def read(self, absent: int) -> Measurement:
        """What the step has taken since it began."""


class CudaGauge:
    """Reads the caching allocator's own counts, and events on the GPU; costs nothing worth naming.

    The allocator's peaks are begun anew when a measured step begins.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._within = 0

    def begin(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)
        self._within = 0
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._start.record(torch.cuda.current_stream(self._device))

    @contextmanager
    def forward(self, inputs: Any) -> Iterator[None]:
        yield
        self._within = self._most()

    @contextmanager
    def backward(self, saved: Any) -> Iterator[None]:
        yield
        self._within = self._most()
        self._end.record(torch.cuda.current_stream(self._device))

    def _most(self) -> int:
        """As `max_memory_allocated`, which takes ten times as long and would be called for every piece of backward."""
        return int(torch.cuda.memory_stats_as_nested_dict(self._device)["allocated_bytes"]["all"]["peak"])

    def read(self, absent: int) -> Measurement:
        self._end.synchronize()
        return Measurement(
            peak=self._most(),
            within=self._within,
            absent=absent,
            reserved=int(torch.cuda.max_memory_reserved(self._device)),
            ns=int(1e6 * self._start.elapsed_time(self._end)),
        )


class LiveGauge:
    """Counts tensors as they come and go, within the graphs of the step: slow, and blind to what lies between them."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        self._holding = [model, *([optimizer] if optimizer is not None else [])]
        self._device = next((p.device for p in model.parameters()), torch.device("cpu"))

    def begin(self) -> None:
        self._peak = 0
        self._begun = self._ended = time.perf_counter_ns()

    @contextmanager
    def forward(self, inputs: Any) -> Iterator[None]:
        with LiveBytes(self._device, holding=[*self._holding, inputs]) as live:
            yield
        self._peak = max(self._peak, live.peak)

    @contextmanager
    def backward(self, saved: Any) -> Iterator[None]:
        with self.forward(saved):
            yield
        self._ended = time.perf_counter_ns()

    def read(self, absent: int) -> Measurement:
        return Measurement(self._peak, self._peak, absent, 0, self._ended - self._begun)


def gauge_of(model: nn.Module, optimizer: torch.optim.Optimizer | None, asked: bool | None) -> Gauge | None:
    """What measures the steps of a model: where it is free on its own, elsewhere where it was asked for."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    if asked is False:
        return None
    if device.type == "cuda":
        return CudaGauge(device)
    return LiveGauge(model, optimizer) if asked else None


def state_there(optimizer: torch.optim.Optimizer | None, kind: str) -> int:
    """Bytes of the state that an optimizer has by now."""
    if optimizer is None:
        return 0
    tensors = list(tensors_of(list(optimizer.state.values())))
    return storage_bytes(tensors, tensors[0].device if tensors else "cpu", kind=kind)


GaugeOf = Callable[[nn.Module], Gauge | None]
