"""Which calls become one kernel, on graphs small enough to know."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from lowtide.compiled.kernels import kernels

aten = torch.ops.aten


def grouped(function: Callable[..., object], *inputs: Tensor) -> list[str]:
    """`calls -> results` of each kernel, in order."""
    graph: fx.Graph = make_fx(function, tracing_mode="fake")(*inputs).graph
    return [
        " ".join(str(node.target).split(".")[1] for node in kernel.nodes if node.target is not None)
        + " -> "
        + " ".join(node.name for node in kernel.results)
        for kernel in kernels(graph)
    ]


def test_pointwise_calls_and_what_reduces_them_are_one_kernel() -> None:
    def softmax(x: Tensor) -> Tensor:
        e = (x - x.amax(1, keepdim=True)).exp()
        return e / e.sum(1, keepdim=True)

    assert grouped(softmax, torch.randn(4, 8)) == ["amax sub exp sum div -> div"]


def test_products_are_kernels_of_their_own_and_views_are_none() -> None:
    def layer(x: Tensor, weight: Tensor) -> Tensor:
        return (x.sin() @ weight.t()).view(2, 2, 8).cos().relu()

    assert grouped(layer, torch.randn(4, 8), torch.randn(8, 8)) == ["sin -> sin", "mm -> mm", "cos relu -> relu"]


def test_rows_and_columns_are_not_reduced_by_one_kernel() -> None:
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.sin()
        return y.sum(0), y.sum(1)

    assert grouped(both, torch.randn(4, 8)) == ["sin sum -> sin sum_1", "sum -> sum_2"]


def test_a_kernel_never_waits_for_itself() -> None:
    def around(x: Tensor, weight: Tensor) -> Tensor:
        y = x.sin()
        return y + y @ weight

    assert grouped(around, torch.randn(4, 4), torch.randn(4, 4)) == ["sin -> sin", "mm -> mm", "add -> add"]


def test_kernels_that_do_not_wait_for_each_other_become_one() -> None:
    def gate(x: Tensor, y: Tensor) -> Tensor:
        return x.sin() * y.cos()

    assert grouped(gate, torch.randn(4, 4), torch.randn(4, 4)) == ["sin cos mul -> mul"]
