"""Errors name places that exist: the module, the file and the line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import lowtide


class Wide(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.sin()] * 40, dim=1).exp()  # the widest place


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), Wide())])
        self.last = nn.Linear(320, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.blocks[0](self.first(x))).square().mean()


@pytest.mark.parametrize("planner", ["greedy", "keep_all", "sqrt"])
def test_a_budget_too_small_names_where_it_is_narrowest(planner: str) -> None:
    torch._dynamo.reset()
    model = Model()
    with pytest.raises(lowtide.BudgetTooSmall) as error:
        lowtide.plan(model, torch.randn(64, 8), memory_budget=0, planner=planner)
    found = re.search(r"The narrowest place is (\S+) in (\S+) \((\S+\.py):(\d+)\)", str(error.value))
    assert found is not None, error.value
    operator, module, file, line = found.groups()
    assert operator.startswith("aten.")
    assert module in {name for name, _ in model.named_modules()}
    assert module == "blocks.0.1"
    assert file == Path(__file__).name
    assert "# the widest place" in Path(__file__).read_text().splitlines()[int(line) - 1]
    # The number named works, and one byte less does not.
    needed = error.value.needed
    assert str(needed) in str(error.value)
    assert lowtide.plan(model, torch.randn(64, 8), memory_budget=needed, planner=planner).total <= needed
    with pytest.raises(lowtide.BudgetTooSmall):
        lowtide.plan(model, torch.randn(64, 8), memory_budget=needed - 1, planner=planner)
