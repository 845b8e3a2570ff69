"""Operations counted against loops written out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from lowtide import _compat
from lowtide.fitted import Settings, capture_call
from lowtide.measure.flops import flops
from lowtide.measure.signature import call_of
from lowtide.planners import keep_all
from zoo import MODELS

aten = torch.ops.aten


def counted(function: Callable[..., Any], *inputs: Tensor) -> dict[str, float]:
    """Operations of a function, by operator."""
    found: dict[str, float] = {}
    with _compat.eager_kernels():
        graph = make_fx(function, tracing_mode="fake")(*inputs).graph
    for node in graph.nodes:
        if node.op == "call_function" and flops(node):
            found[str(node.target)] = found.get(str(node.target), 0) + flops(node)
    return found


def gradients(function: Callable[..., Tensor]) -> Callable[..., Any]:
    def both(*inputs: Tensor) -> Any:
        leaves = [x.detach().requires_grad_() for x in inputs]
        return torch.autograd.grad(function(*leaves).sum(), leaves)

    return both


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_a_convolution_and_its_gradients(groups: int) -> None:
    """Every output is a sum over a window and the channels of its group; backward is as much again for x and for w."""
    x, w = torch.randn(2, 8, 10, 10), torch.randn(16, 8 // groups, 3, 3)
    found = counted(gradients(lambda x, w: functional.conv2d(x, w, padding=1, stride=2, groups=groups)), x, w)
    forward = 2 * (2 * 16 * 5 * 5) * (8 // groups * 3 * 3)
    assert found == {"aten.convolution.default": forward, "aten.convolution_backward.default": 2 * forward}


def test_a_transposed_convolution_and_its_gradients() -> None:
    """Every input reaches a window of every output channel."""
    x, w = torch.randn(2, 8, 5, 5), torch.randn(8, 4, 2, 2)
    found = counted(gradients(lambda x, w: functional.conv_transpose2d(x, w, stride=2)), x, w)
    forward = 2 * (2 * 8 * 5 * 5) * (4 * 2 * 2)
    assert found == {"aten.convolution.default": forward, "aten.convolution_backward.default": 2 * forward}


@pytest.mark.parametrize("causal", [False, True])
def test_attention_and_its_gradients(causal: bool) -> None:
    """Two products forward, five backward; with a causal mask the half of each is left out."""
    q = torch.randn(2, 3, 16, 8)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)[0]

    found = counted(gradients(attend), q, q, q)
    product = 2 * 2 * 3 * 16 * 16 * 8 // (2 if causal else 1)
    assert found == {
        "aten._scaled_dot_product_flash_attention_for_cpu.default": 2 * product,
        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": 5 * product,
    }


PRODUCTS: list[tuple[Callable[..., Any], list[Tensor], float]] = [
    (torch.mv, [torch.randn(3, 5), torch.randn(5)], 2 * 15),
    (torch.addmv, [torch.randn(3), torch.randn(3, 5), torch.randn(5)], 2 * 15),
    (torch.dot, [torch.randn(7), torch.randn(7)], 2 * 7),
    (torch.baddbmm, [torch.randn(2, 3, 4), torch.randn(2, 3, 5), torch.randn(2, 5, 4)], 2 * 2 * 3 * 4 * 5),
    (torch.addbmm, [torch.randn(3, 4), torch.randn(2, 3, 5), torch.randn(2, 5, 4)], 2 * 2 * 3 * 4 * 5),
    (torch.fft.fft, [torch.randn(4, 16, dtype=torch.complex64)], 5 * 64 * 4),
]


@pytest.mark.parametrize(("function", "inputs", "wanted"), PRODUCTS)
def test_products(function: Callable[..., Any], inputs: list[Tensor], wanted: float) -> None:
    assert sum(counted(function, *inputs).values()) == wanted


def _calls(model: nn.Module, args: Any, kwargs: Any) -> list[fx.Node]:
    def plan(_: Any) -> Any:
        raise AssertionError

    graphs = capture_call(model, args, kwargs, Settings(plan, keep_all.solve, None, None, 1)).graphs
    calls = [call_of(action) for graph in graphs for action in graph.actions]
    return [call.node for call in calls if call is not None]


def test_an_lstm_counts_every_matrix_once_a_step() -> None:
    """Inputs and hidden states go through four gates each, at every step of every sequence."""
    torch._dynamo.reset()
    model = nn.LSTM(6, 5, batch_first=True)
    found = {str(node.target): flops(node) for node in _calls(model, (torch.randn(3, 7, 6),), {})}
    forward = 2 * 3 * 7 * (6 * 20 + 5 * 20)
    assert found["aten.mkldnn_rnn_layer.default"] == forward
    assert found["aten.mkldnn_rnn_layer_backward.default"] == 2 * forward


# Words in the names of operators that multiply matrices.
PRODUCING = ("mm", "conv", "attention", "rnn", "lstm", "gru", "linear", "dot", "fft")


@pytest.mark.parametrize("name", ["resnet", "vit", "lstm", "unet"])
def test_no_product_of_the_zoo_is_free(name: str) -> None:
    torch._dynamo.reset()
    case = MODELS[name]()
    calls = _calls(case.model, case.args, case.kwargs)
    products = [node for node in calls if any(word in str(node.target) for word in PRODUCING)]
    assert products
    assert [str(node.target) for node in products if not flops(node)] == []
