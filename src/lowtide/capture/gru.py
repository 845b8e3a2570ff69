"""A GRU on the CPU, as eager PyTorch works it out, for tracing.

PyTorch's own code cuts a buffer with `unsafe_chunk` and then adds and applies sigmoid in place. Tracing takes the
pieces for tensors of their own, and a write in place for a new tensor, dense where the piece was not; and on the CPU
sigmoid of a dense tensor, taken all at once, may differ in the last bit from sigmoid row by row. Written as below, it
goes row by row here too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

aten = torch.ops.aten
Weights = Sequence[Tensor]


def gru_on_cpu(
    input: Tensor,
    hx: Tensor,
    params: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor]:
    """What `aten.gru.input` returns: the outputs, and the last hidden state of every layer and direction."""
    x = input.transpose(0, 1) if batch_first else input
    hidden = hx.unbind(0)
    directions, count = 1 + bidirectional, 2 + 2 * has_biases
    weights = [params[i : i + count] for i in range(0, len(params), count)]
    last: list[Tensor] = []
    for layer in range(layers):
        first = layer * directions
        outputs, end = _direction(x, hidden[first], weights[first])
        last.append(end)
        if bidirectional:
            reverse, end = _direction(x, hidden[first + 1], weights[first + 1], backwards=True)
            outputs = torch.cat([outputs, reverse], outputs.dim() - 1)
            last.append(end)
        x = torch.dropout(outputs, dropout, train) if dropout and train and layer < layers - 1 else outputs
    return x.transpose(0, 1) if batch_first else x, torch.stack(last, 0)


def _direction(x: Tensor, hidden: Tensor, weights: Weights, *, backwards: bool = False) -> tuple[Tensor, Tensor]:
    """One layer in one direction: its outputs in the order of the inputs, and its last hidden state."""
    steps = list(_linear(x, weights, 0).unbind(0))
    outputs = []
    for gates in reversed(steps) if backwards else steps:
        hidden = _cell(gates, hidden, weights)
        outputs.append(hidden)
    return torch.stack(outputs[::-1] if backwards else outputs, 0), hidden


def _cell(of_input: Tensor, hidden: Tensor, weights: Weights) -> Tensor:
    sizes = [2 * hidden.shape[1], hidden.shape[1]]
    gates_of_input, new_of_input = aten.unsafe_split_with_sizes(of_input, sizes, 1)
    gates_of_hidden, new_of_hidden = aten.unsafe_split_with_sizes(_linear(hidden, weights, 1), sizes, 1)
    reset, update = aten.unsafe_chunk(gates_of_hidden + gates_of_input, 2, 1)
    reset, update = reset.sigmoid(), update.sigmoid()
    new = (new_of_input + new_of_hidden * reset).tanh()
    return (hidden - new) * update + new


def _linear(x: Tensor, weights: Weights, which: int) -> Tensor:
    return torch.nn.functional.linear(x, weights[which], weights[which + 2] if len(weights) > 2 else None)
