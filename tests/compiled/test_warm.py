"""A second start finds everything compiled, each plan its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

START = """
import json, sys
import torch
from torch import nn
import lowtide
from compiled.models import Total
from torch._dynamo.utils import counters

found = []
batch = torch.randn(256, 32, generator=torch.Generator().manual_seed(0))
for budget in map(int, sys.argv[1:]):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(5)), Total())
    lowtide.fit(model, memory_budget=budget, backend="inductor")
    model(batch).backward()
    plan = model._compiled_call_impl.plan
    found.append([plan.reruns, plan.total, [p.grad.double().sum().item() for p in model.parameters()]])
hits = counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"]
print(json.dumps({"found": found, "hits": hits[0], "misses": hits[1]}))
"""


def test_a_second_start_compiles_nothing_and_budgets_are_told_apart() -> None:
    tests = str(Path(__file__).parents[1])

    def start() -> dict[str, object]:
        call = [sys.executable, "-c", f"import sys; sys.path.insert(0, {tests!r})\n{START}", "400000", "230000"]
        done = subprocess.run(call, capture_output=True, text=True, check=True)
        answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
        return answer

    cold, warm = start(), start()
    assert cold["misses"] != 0
    assert warm["misses"] == 0
    assert warm["found"] == cold["found"]
    (none, plain, numbers), (some, smaller, again) = warm["found"]  # type: ignore[misc, attr-defined]
    assert none == 0 < some
    assert smaller <= 230_000 < plain <= 400_000
    assert numbers == again
