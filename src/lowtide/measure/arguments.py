"""Tensors to call an operator with when only its cost is wanted: random numbers that it accepts.

Zeros would be quicker to multiply than what a model holds. An index out of range would stop a GPU for good, so an
integer is 0 unless it is known what it counts.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from lowtide._compat import OpOverload

Limits = Callable[[Sequence[Any]], dict[int, Any]]


def _along(tensor: int, dimension: int, index: int) -> Limits:
    """The argument `index` counts along a dimension of the argument `tensor`."""
    return lambda args: {index: _size(args[tensor], args[dimension])}


def _classes(scores: int, target: int) -> Limits:
    return lambda args: {target: args[scores].shape[1 if args[scores].dim() > 1 else 0]}


def _pieces(args: Sequence[Any]) -> dict[int, Any]:
    """A list of indices, each along its own dimension."""
    return {1: [args[0].shape[i] if i < args[0].dim() else 1 for i in range(len(args[1]))]}


def _plane(grad: int, index: int, dimensions: int) -> Limits:
    """Places in a plane of the argument `grad`."""
    return lambda args: {index: math.prod(args[grad].shape[-dimensions:])}


# By operator: one above the largest integer that each argument may hold, where that is not 1.
_LIMITS: dict[str, Limits] = {
    "aten::embedding": lambda args: {1: args[0].shape[0]},
    "aten::embedding_dense_backward": lambda args: {1: args[2]},
    "aten::_embedding_bag": lambda args: {1: args[0].shape[0]},
    "aten::gather": _along(0, 1, 2),
    "aten::gather_backward": _along(1, 2, 3),
    "aten::index": _pieces,
    "aten::index_add": _along(0, 1, 2),
    "aten::index_copy": _along(0, 1, 2),
    "aten::index_fill": _along(0, 1, 2),
    "aten::index_put": _pieces,
    "aten::index_reduce": _along(0, 1, 2),
    "aten::index_select": _along(0, 1, 2),
    "aten::index_select_backward": lambda args: {3: args[1][args[2]]},
    "aten::nll_loss_forward": _classes(0, 1),
    "aten::nll_loss_backward": _classes(1, 2),
    "aten::nll_loss2d_forward": _classes(0, 1),
    "aten::nll_loss2d_backward": _classes(1, 2),
    "aten::multi_margin_loss": _classes(0, 1),
    "aten::multi_margin_loss_backward": _classes(1, 2),
    "aten::max_pool2d_with_indices_backward": _plane(1, 7, 2),
    "aten::max_pool3d_with_indices_backward": _plane(1, 7, 3),
    "aten::adaptive_max_pool2d_backward": _plane(1, 2, 2),
    "aten::adaptive_max_pool3d_backward": _plane(1, 2, 3),
    "aten::scatter": _along(0, 1, 2),
    "aten::scatter_add": _along(0, 1, 2),
    "aten::scatter_reduce": _along(0, 1, 2),
    "aten::take": lambda args: {1: args[0].numel()},
    "aten::value_selecting_reduction_backward": lambda args: {2: args[3][args[1]] if args[3] else 1},
    "aten::_unsafe_index": _pieces,
    "aten::_unsafe_index_put": _pieces,
}
# Operators that refuse, or stop the GPU at, numbers outside of 0 to 1.
_SHARES = {
    "aten::bernoulli",
    "aten::binary_cross_entropy",
    "aten::binary_cross_entropy_backward",
    "aten::binomial",
    "aten::multinomial",
    "aten::poisson",
}


class Arguments:
    """Makes the tensors of calls on one device, from a generator of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._generator = torch.Generator(device).manual_seed(0)

    def of(self, node: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What to call the node's operator with; one tensor for each node that it reads."""
        made: dict[fx.Node, Any] = {}
        name = node.target._schema.name if isinstance(node.target, OpOverload) else ""
        limits = _limits(name, node)

        def place(argument: Any, limit: Any) -> Any:
            if isinstance(argument, fx.Node):
                if argument not in made:
                    limit = limit if isinstance(limit, int) else 1
                    made[argument] = self._value(argument, limit, shares=name in _SHARES)
                return made[argument]
            if isinstance(argument, (tuple, list)):
                each = limit if isinstance(limit, list) else [limit] * len(argument)
                return type(argument)(place(item, bound) for item, bound in zip(argument, each, strict=True))
            return self._device if isinstance(argument, torch.device) else argument

        args = tuple(place(argument, limits.get(i, 1)) for i, argument in enumerate(node.args))
        return args, {key: place(argument, 1) for key, argument in node.kwargs.items()}

    def like(self, tensor: torch.Tensor, limit: int = 1, *, shares: bool = False) -> torch.Tensor:
        """A random tensor that lies in memory as `tensor` does; integers are from 0 to `limit`, exclusively."""
        size = tensor.element_size()
        skipped = tensor.storage_offset() * size % 16 // size
        span = skipped + 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        span = skipped if tensor.numel() == 0 else span
        base = torch.empty(span, dtype=tensor.dtype, device=self._device)
        if tensor.dtype is torch.bool:
            base.random_(0, 2, generator=self._generator)
        elif not (tensor.is_floating_point() or tensor.is_complex()):
            # Few types of integers can be drawn on every device; all can be set to 0.
            base.random_(0, limit, generator=self._generator) if limit > 1 else base.zero_()
        elif size == 1:
            # Small numbers of eight bits: any bits below the sign and the exponent's end are one.
            base.view(torch.uint8).random_(0, 64, generator=self._generator)
        elif shares:
            base.uniform_(generator=self._generator)
        else:
            base.normal_(generator=self._generator)
        return base.as_strided(tensor.shape, tensor.stride(), skipped)

    def _value(self, node: fx.Node, limit: int, *, shares: bool) -> Any:
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            return [self.like(each, limit) for each in value] if isinstance(value, (tuple, list)) else value
        if value.dtype is torch.uint8 and node.target is operator.getitem:
            # Bytes that an operator made are its own affair: only it can make them.
            return self._result(node)
        return self.like(value, limit, shares=shares)

    def _result(self, node: fx.Node) -> Any:
        producer, position = node.args
        assert isinstance(producer, fx.Node)
        args, kwargs = self.of(producer)
        with torch.enable_grad():
            return producer.target(*args, **kwargs)[position]


def _limits(name: str, node: fx.Node) -> dict[int, Any]:
    if name not in _LIMITS:
        return {}
    return _LIMITS[name](fx.map_arg(tuple(node.args), lambda n: n.meta["val"]))


def _size(tensor: torch.Tensor, dimension: int) -> int:
    return tensor.shape[dimension] if tensor.dim() else 1
