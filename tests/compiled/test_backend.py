"""The backend "lowtide" of torch.compile, for whole models and for each block."""

from __future__ import annotations

import doctest
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import nn

from compiled.models import Total, Wide
from compiled.steps import measured, same, trace
from lowtide.compiled_backend import backend


def layers() -> nn.Sequential:
    """Blocks that are alike, and a loss."""
    torch.manual_seed(0)
    return nn.Sequential(*(Wide() for _ in range(4)), Total())


def test_blocks_compiled_one_by_one_share_one_budget() -> None:
    batch = torch.randn(512, 32)
    plain = layers()
    for block in plain:
        block.compile(dynamic=False)
    expected, plain_peak = trace(plain, plain, batch, steps=3), measured(plain, plain, batch)
    torch.compiler.reset()
    budget = int(0.85 * plain_peak)
    model = layers()
    for block in model:
        block.compile(backend=backend, options={"memory_budget": budget}, dynamic=False)
    assert same(trace(model, model, batch, steps=3), expected)
    assert measured(model, model, batch) <= budget


def test_it_is_registered_by_its_entry_point() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    module, _, name = project["project"]["entry-points"]["torch_dynamo_backends"]["lowtide"].partition(":")
    assert getattr(import_module(module), name) is backend


def test_the_example_runs_as_printed() -> None:
    (example,) = doctest.DocTestFinder(recurse=False).find(backend, globs={**globals()})
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0


def test_a_budget_must_be_given() -> None:
    with pytest.raises(Exception, match="needs a budget"):
        torch.compile(nn.Linear(4, 1), backend=backend)(torch.ones(2, 4))


def test_sizes_that_vary_are_refused() -> None:
    layer = torch.compile(nn.Linear(4, 1), backend=backend, options={"memory_budget": "1MiB"}, dynamic=True)
    with pytest.raises(Exception, match="dynamic=False"):
        layer(torch.ones(3, 4))


def test_cuda_graphs_are_refused() -> None:
    given = {"memory_budget": "1MiB", "triton.cudagraphs": True}
    with pytest.raises(Exception, match="max-autotune-no-cudagraphs"):
        torch.compile(nn.Linear(4, 1), backend=backend, options=given, dynamic=False)(torch.ones(2, 4))
