"""What one call costs on the device that is here: nanoseconds, and the memory that it takes for itself."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from lowtide import _compat

TURNS = 5  # Timed batches of calls; the middle one counts.
MOST_CALLS = 200  # In one batch. A GPU's queue holds about a thousand launches, and a call may make several.


@dataclass(frozen=True, slots=True)
class Cost:
    """What one call of an operator costs.

    ns          nanoseconds, of many calls one after another
    workspace   bytes it takes while it runs besides its arguments and its results
    """

    ns: int
    workspace: int


class Clock(Protocol):
    """Measures calls on one device."""

    device: torch.device
    name: str

    def machine(self) -> str:
        """What a cost depends on besides the call: the device, PyTorch's version, its settings."""

    def cost(self, call: Callable[[], Any], seconds: float) -> Cost:
        """The cost of a call, found in about so many seconds."""

    def room(self) -> int | None:
        """Bytes that may still be taken; None where that cannot be said."""

    def alive(self) -> bool:
        """Whether the device still takes calls, after one that failed on it."""

    def clean(self) -> None:
        """Give back what measuring has left behind."""


class CpuClock:
    """Times calls by the clock; where one thread does all the work by that thread's own, which stands still while other
    programs have the processor. What a call takes from the allocator for itself cannot be seen.
    """

    def __init__(self) -> None:
        self._timer = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
        self.device = torch.device("cpu")
        self.name = _processor()

    def machine(self) -> str:
        return f"{self.name}, {torch.get_num_threads()} threads, {_compat.numeric_settings('cpu')}"

    def cost(self, call: Callable[[], Any], seconds: float) -> Cost:
        call()
        once = self._clocked(call, 1)
        calls = max(1, min(MOST_CALLS, int(seconds / TURNS / max(once, 1e-9))))
        turns = (
            [once] if calls == 1 and once * TURNS > 2 * seconds else [self._clocked(call, calls) for _ in range(TURNS)]
        )
        return Cost(int(1e9 * statistics.median(turns)), 0)

    def _clocked(self, call: Callable[[], Any], calls: int) -> float:
        begun = self._timer()
        for _ in range(calls):
            call()
        return (self._timer() - begun) / calls

    def room(self) -> int | None:
        return None

    def alive(self) -> bool:
        return True

    def clean(self) -> None:
        pass


class CudaClock:
    """Times calls by events on the GPU, queued behind a pause so that the GPU never waits for Python.

    The allocator's peak is begun anew with every call that is measured.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.name = torch.cuda.get_device_name(device)
        self._warm = False

    def machine(self) -> str:
        return f"{self.name}, {_compat.numeric_settings('cuda')}"

    def cost(self, call: Callable[[], Any], seconds: float) -> Cost:
        with torch.cuda.device(self.device):
            if not self._warm:
                self._wake()
            call()  # Chooses algorithms, and takes what libraries keep for good.
            workspace = self._workspace(call)
            once, launch = self._elapsed(call, 3, 0.0005)
            pause = 1.2 * launch  # For each call of a batch, so that all are queued before the first one runs.
            calls = max(1, min(MOST_CALLS, int(seconds / TURNS / max(once + pause, 1e-7))))
            turns = TURNS if once * TURNS < 2 * seconds else 1
            found = [self._elapsed(call, calls, pause * calls)[0] for _ in range(turns)]
        return Cost(int(1e9 * statistics.median(found)), workspace)

    def room(self) -> int | None:
        free, _ = torch.cuda.mem_get_info(self.device)
        return int(free + torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device))

    def alive(self) -> bool:
        try:
            torch.cuda.synchronize(self.device)
        except RuntimeError:
            return False
        return True

    def clean(self) -> None:
        torch.cuda.empty_cache()

    def _wake(self) -> None:
        """An idle GPU runs slowly: give it a fifth of a second of work."""
        x = torch.randn(2048, 2048, device=self.device)
        end = time.perf_counter() + 0.2
        while time.perf_counter() < end:
            for _ in range(10):
                torch.mm(x, x)
            torch.cuda.synchronize(self.device)
        self._warm = True

    def _workspace(self, call: Callable[[], Any]) -> int:
        """What the call asks of the allocator at its most, less what it returns."""
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_stats(self.device)["requested_bytes.all.current"]
        results = call()
        torch.cuda.synchronize(self.device)
        after = torch.cuda.memory_stats(self.device)
        kept = int(after["requested_bytes.all.current"]) - int(before)
        del results
        return max(0, int(after["requested_bytes.all.peak"]) - int(before) - kept)

    def _elapsed(self, call: Callable[[], Any], calls: int, pause: float) -> tuple[float, float]:
        """Seconds a call on the GPU, and seconds a call that Python took to launch it."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        _compat.pause_device(pause)
        start.record()
        begun = time.perf_counter()
        for _ in range(calls):
            call()
        launched = time.perf_counter() - begun
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / calls, launched / calls


def _processor() -> str:
    """The processor's name, as Linux gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def clock_of(device: torch.device) -> Clock:
    """The clock for a device that is here."""
    return CudaClock(device) if device.type == "cuda" else CpuClock()
