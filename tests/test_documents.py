"""What the documents print runs as printed: the README's example, and the examples of every public name."""

from __future__ import annotations

import doctest
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import lowtide
from lowtide import budget, device, referee
from lowtide.allocator import charged
from lowtide.measure.live import LiveBytes

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
CALLS = [lowtide.fit, lowtide.unfit, lowtide.plan, lowtide.apply, lowtide.Batch, budget.parse, budget.show, referee.run]
CALLS += [lowtide.frontier, lowtide.measure.clear, lowtide.check, lowtide.max_batch, device.named, device.resembling]
CALLS += [lowtide.Batches.save, lowtide.Batches.load, charged]
CALLS += [lowtide.Plan.save, lowtide.Plan.load, lowtide.Plan.summary, lowtide.Program.parse]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__qualname__)
def test_every_public_call_has_an_example_that_runs(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    module = inspect.getmodule(call)
    assert isinstance(module, ModuleType)
    names = {**vars(module), "torch": torch, "nn": nn, "lowtide": lowtide}
    found = doctest.DocTestFinder(recurse=False).find(call, call.__qualname__, module=module, globs=names)
    examples = [test for test in found if test.examples]
    assert examples, "no example"
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in examples:
        assert runner.run(test).failed == 0


def test_every_public_name_has_a_docstring() -> None:
    assert [name for name in lowtide.__all__ if not inspect.getdoc(getattr(lowtide, name))] == []


def test_the_readme_example_runs_as_printed_within_its_budget() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in example.splitlines() if line.strip()]) <= 15
    head, loop = example.split("for _ in range(3):")
    names: dict[str, Any] = {}
    exec(head, names)
    with LiveBytes("cpu", holding=[names["model"], names["optimizer"], names["batch"]]) as live:
        exec("for _ in range(3):" + loop, names)
    assert live.peak <= 160 * 2**20
    assert names["plan"].total <= 160 * 2**20
    assert names["model"]._compiled_call_impl.plan.reruns > 0
