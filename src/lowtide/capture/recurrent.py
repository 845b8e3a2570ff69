"""Recurrent networks on CUDA: cuDNN's kernel, as eager PyTorch calls it.

PyTorch's own code for them looks at where the weights lie in memory, which tensors without data cannot tell, and the
front end would take the network apart instead, cell by cell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lowtide.errors import UnsupportedModel

aten = torch.ops.aten
_RELU, _TANH, _LSTM, _GRU = range(4)  # cuDNN's numbers for the kinds of cell


def _cudnn(
    kind: int,
    input: Tensor,
    hidden: Tensor,
    cell: Tensor | None,
    weights: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    if dropout and train and layers > 1:
        raise UnsupportedModel(
            f"a recurrent network with dropout={dropout} between its layers on CUDA draws from a generator that cuDNN "
            "keeps to itself, so that no step can be repeated. Use dropout=0 there, and nn.Dropout between networks of "
            "one layer."
        )
    projected = cell is not None and cell.shape[2] != hidden.shape[2]
    width, projection = (cell.shape[2], hidden.shape[2]) if projected and cell is not None else (hidden.shape[2], 0)
    stride = 2 + 2 * has_biases + projected
    shape: tuple[Any, ...] = (kind, width, projection, layers, batch_first, 0.0, train, bidirectional, [], None)
    return tuple(aten._cudnn_rnn(input, weights, stride, _flat(weights), hidden, cell, *shape)[:3])


def _flat(weights: Sequence[Tensor]) -> Tensor | None:
    """The one piece of memory in which all the weights lie, where they do; else cuDNN's kernel copies them into one."""
    first = weights[0]
    count = first.untyped_storage().nbytes() // first.element_size()
    places = {weight.storage_offset() for weight in weights}
    alike = {weight.untyped_storage().nbytes() for weight in weights}
    if len(places) < len(weights) or len(alike) > 1 or first.storage_offset():
        return None
    with torch.no_grad():
        return first.detach().as_strided((count,), (1,))


def _lstm(input: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], *rest: Any) -> tuple[Tensor, ...]:
    return _cudnn(_LSTM, input, hx[0], hx[1], params, *rest)


def _without_cell(kind: int, input: Tensor, hx: Tensor, params: Sequence[Tensor], *rest: Any) -> tuple[Tensor, ...]:
    return _cudnn(kind, input, hx, None, params, *rest)[:2]


RECURRENT: Mapping[Any, Callable[..., Any]] = {
    aten.lstm.input: _lstm,
    aten.gru.input: partial(_without_cell, _GRU),
    aten.rnn_tanh.input: partial(_without_cell, _TANH),
    aten.rnn_relu.input: partial(_without_cell, _RELU),
}
