"""Arithmetic operations of one call: PyTorch's own formulas, and some for operators that it has none for.

A product and a sum are two operations. What has no formula is taken to do no arithmetic worth counting: pointwise
operators, reductions and copies are as slow as the memory that they read and write.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils.flop_counter import conv_flop_count, flop_registry

from lowtide._compat import OpOverload

aten = torch.ops.aten
Arguments = Sequence[Any]


def flops(node: fx.Node) -> float:
    """Operations of the node's call; 0 where no formula is known."""
    target = node.target
    if not isinstance(target, OpOverload):
        return 0
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda n: n.meta["val"])
    own = _OWN.get(target.overloadpacket)
    if own is not None:
        count = own(args)
    else:
        formula = flop_registry.get(target.overloadpacket)
        count = 0 if formula is None else float(formula(*args, **kwargs, out_val=node.meta["val"]))
    return count / 2 if _skips_the_future(target, args, kwargs) else count


def _skips_the_future(target: OpOverload, args: Arguments, kwargs: dict[str, Any]) -> bool:
    """Whether the kernel leaves out what a causal mask would, half of all products."""
    for place, parameter in enumerate(target._schema.arguments):
        if parameter.name == "is_causal":
            return bool(args[place] if place < len(args) else kwargs.get("is_causal", False))
    return False


def _registered(packet: Any, first: int) -> Callable[[Arguments], float]:
    """PyTorch's formula for another operator whose first arguments are the same."""
    return lambda args: float(flop_registry[packet](*args[:first], out_val=None))


def _convolution(args: Arguments) -> float:
    x, weight = args[0], args[1]
    padding, stride, dilation = args[3], args[4], args[5]
    sizes = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, p, s, d in zip(x.shape[2:], weight.shape[2:], padding, stride, dilation, strict=True)
    ]
    return float(conv_flop_count(x.shape, weight.shape, [x.shape[0], weight.shape[0], *sizes]))


def _convolution_backward(args: Arguments) -> float:
    """As much as forward for each of the two gradients; PyTorch's formula forgets that groups do not meet."""
    gradient, x, weight, transposed, wanted = args[0], args[1], args[2], args[7], args[10]
    return float(conv_flop_count(x.shape, weight.shape, gradient.shape, transposed)) * (wanted[0] + wanted[1])


def _recurrent(weights: Callable[[Arguments], Sequence[Any]], times: int) -> Callable[[Arguments], float]:
    """Every matrix is multiplied with one row for each step of each sequence; `times` 1 forward, 2 backward."""

    def formula(args: Arguments) -> float:
        rows = args[0].numel() // args[0].shape[-1]
        matrices = [w for w in weights(args) if isinstance(w, Tensor) and w.dim() == 2 and w.shape[1] > 1]
        return float(2 * times * rows * sum(w.numel() for w in matrices))

    return formula


def _linear(args: Arguments) -> float:
    return 2.0 * args[0].numel() * args[1].shape[0]


def _linear_backward(args: Arguments) -> float:
    return 2.0 * args[0].numel() * args[2].shape[0] * (args[3][0] + args[3][1])


def _fourier(args: Arguments) -> float:
    lengths = math.prod(args[0].shape[d] for d in args[1])
    return 5.0 * args[0].numel() * math.log2(max(2, lengths))


# By operator, from its arguments with tensors in the place of nodes.
_OWN: dict[Any, Callable[[Arguments], float]] = {
    aten._cdist_forward: lambda args: 3.0 * args[0].numel() * args[1].shape[-2],
    aten._cudnn_rnn: _recurrent(lambda args: args[1], 1),
    aten._cudnn_rnn_backward: _recurrent(lambda args: args[1], 2),
    aten._fft_c2c: _fourier,
    aten._fft_c2r: _fourier,
    aten._fft_r2c: _fourier,
    aten._grouped_mm: lambda args: 2.0 * args[0].numel() * args[1].shape[-1],
    aten._int_mm: lambda args: 2.0 * args[0].numel() * args[1].shape[1],
    aten._scaled_dot_product_flash_attention_for_cpu: _registered(aten._scaled_dot_product_flash_attention, 3),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _registered(
        aten._scaled_dot_product_flash_attention_backward, 4
    ),
    aten.addbmm: lambda args: 2.0 * args[1].numel() * args[2].shape[2],
    aten.addmv: lambda args: 2.0 * args[1].numel(),
    aten.convolution_backward: _convolution_backward,
    aten.dot: lambda args: 2.0 * args[0].numel(),
    aten.linear: _linear,
    aten.linear_backward: _linear_backward,
    aten.mkldnn_convolution: _convolution,
    aten.mkldnn_rnn_layer: _recurrent(lambda args: args[1:5], 1),
    aten.mkldnn_rnn_layer_backward: _recurrent(lambda args: args[1:5], 2),
    aten.mv: lambda args: 2.0 * args[0].numel(),
    aten.vdot: lambda args: 2.0 * args[0].numel(),
}
