"""What PyTorch's CPU allocator gives out while a step runs: compiled code allocates where no dispatch mode looks."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable

import torch


def most_allocated(step: Callable[[], object]) -> int:
    """Bytes allocated at the peak of `step`, those before it not counted, by the profiler's own record."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        kept = step()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profile.export_chrome_trace(file.name)
        with open(file.name) as text:
            events = json.load(text)["traceEvents"]
    del kept
    now = peak = 0
    for event in sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: float(e["ts"])):
        now += event["args"]["Bytes"]
        peak = max(peak, now)
    return peak
