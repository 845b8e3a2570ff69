"""How a GPU's clock goes about it, held against a GPU of paper: launches are queued, and memory is counted."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from lowtide import _compat
from lowtide.measure.clock import CudaClock

MICROSECOND = 1e-6


class Paper:
    """A GPU that runs what is queued one after another, each launch 5 microseconds of Python and `ns` of work."""

    def __init__(self, seconds: float, workspace: int) -> None:
        self.seconds, self.workspace = seconds, workspace
        self.python = self.busy_until = 0.0
        self.taken, self.peak, self.launches, self.waited = 1000, 1000, 0, 0.0

    def call(self) -> object:
        self.launches += 1
        self.python += 5 * MICROSECOND
        self.waited += max(0.0, self.python - self.busy_until)
        self.busy_until = max(self.busy_until, self.python) + self.seconds
        self.peak = max(self.peak, self.taken + 64 + self.workspace)
        self.taken += 64
        return Result(self)

    def pause(self, seconds: float) -> None:
        self.busy_until = max(self.busy_until, self.python) + seconds

    def event(self, **_: Any) -> Any:
        gpu = self

        class Event:
            at = 0.0

            def record(self) -> None:
                gpu.busy_until = self.at = max(gpu.busy_until, gpu.python)

            def synchronize(self) -> None:
                gpu.python = max(gpu.python, self.at)

            def elapsed_time(self, other: Any) -> float:
                return 1e3 * (other.at - self.at)

        return Event()

    def reset(self, _: Any) -> None:
        self.peak = self.taken

    def stats(self, _: Any) -> dict[str, int]:
        return {"requested_bytes.all.current": self.taken, "requested_bytes.all.peak": self.peak}


class Result:
    def __init__(self, gpu: Paper) -> None:
        self.gpu = gpu

    def __del__(self) -> None:
        self.gpu.taken -= 64


@pytest.fixture
def paper(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Paper:
    gpu = Paper(*request.param)
    for name, stand_in in {
        "get_device_name": lambda _: "NVIDIA Paper",
        "device": lambda _: nullcontext(),
        "synchronize": lambda _: None,
        "reset_peak_memory_stats": gpu.reset,
        "memory_stats": gpu.stats,
        "Event": gpu.event,
        "mem_get_info": lambda _: (100, 1000),
        "memory_reserved": lambda _: 50,
        "memory_allocated": lambda _: 20,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(_compat, "pause_device", gpu.pause)
    monkeypatch.setattr(CudaClock, "_wake", lambda clock: setattr(clock, "_warm", True))
    monkeypatch.setattr(time, "perf_counter", lambda: gpu.python)
    return gpu


@pytest.mark.parametrize("paper", [(2 * MICROSECOND, 0), (80 * MICROSECOND, 4096), (0.03, 7)], indirect=True)
def test_the_gpu_is_timed_and_not_python(paper: Paper) -> None:
    """A kernel of 2 microseconds is measured as such though Python takes 5 to launch it."""
    found = CudaClock(torch.device("cpu")).cost(paper.call, 0.04)
    assert found.ns == pytest.approx(1e9 * paper.seconds, rel=0.001)
    assert found.workspace == paper.workspace
    assert paper.busy_until < (0.05 if paper.seconds < 0.01 else 0.2)


@pytest.mark.parametrize("paper", [(1e-3, 0)], indirect=True)
def test_room_is_what_is_free_and_what_the_allocator_keeps(paper: Paper) -> None:
    assert CudaClock(torch.device("cpu")).room() == 100 + 50 - 20
