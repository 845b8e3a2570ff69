"""Outputs that the loss leaves out: their part of backward must not run, not even on zeros."""

from __future__ import annotations

import copy
import weakref
from itertools import combinations

import pytest
import torch
from torch import fx, nn

import lowtide
from lowtide.apply.undefined import backward_function
from training import same


class Several(nn.Module):
    """Five outputs that share parts; the second has an infinite derivative, so that zeros would turn into nan."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0, 3.0]))
        self.linear = nn.Linear(2, 2)
        self.norm = nn.LayerNorm(2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = torch.tanh(self.linear(x))
        left, right = hidden.chunk(2, -1)
        root = (self.weight - 2).sqrt() + hidden
        return self.weight.sum() * hidden, root, left, right, self.norm(hidden), hidden.detach()


@pytest.fixture(scope="module")
def models() -> tuple[nn.Module, nn.Module]:
    """A plain model and a fitted one with the same parameters."""
    torch.manual_seed(0)
    plain = Several()
    return plain, lowtide.fit(copy.deepcopy(plain), memory_budget="1GiB", loss_inside=False)


@pytest.mark.parametrize("used", [use for count in range(1, 6) for use in combinations(range(5), count)])
def test_outputs_without_a_gradient(models: tuple[nn.Module, nn.Module], used: tuple[int, ...]) -> None:
    """Every gradient is plain autograd's to the last bit, and missing where plain autograd leaves it out."""
    x = torch.linspace(-1, 1, 6).reshape(3, 2)
    for model in models:
        model.zero_grad()
        outputs = model(x)
        sum(outputs[i].square().sum() for i in used).backward()
    for plain, fitted in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert same(plain.grad, fitted.grad)


def test_what_is_never_read_goes_at_once() -> None:
    """A backward that is cut down is given what it no longer reads; generated code would hold it to the end."""
    seen = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(unread() is None)
        return x

    graph = fx.Graph()
    read, _ = graph.placeholder("read"), graph.placeholder("unread")
    graph.output((graph.call_function(look, (read,)),))
    args = [torch.ones(2), torch.ones(3)]
    unread = weakref.ref(args[1])
    backward_function(fx.GraphModule(nn.Module(), graph), [])(args)
    assert seen == [True]
