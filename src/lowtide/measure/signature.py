"""What the cost of a call depends on, as text: the operator, its tensors as they lie in memory, its constants."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from lowtide._compat import OpOverload
from lowtide.captured import Action, Call, RecordedCall, Snapshot

# Operators of these libraries can be called on the side; a custom one may hide state, which measuring would move.
_HARMLESS = {"aten", "prims", "torchvision"}
_STOPPING = {"aten::_assert_async", "aten::_local_scalar_dense"}


def call_of(action: Action) -> Call | None:
    """The call that an action makes, in whatever guise; None for what calls nothing of its own."""
    return action if isinstance(action, Call) else getattr(action, "call", None)


def signature(action: Action) -> str:
    """Equal for two actions that cost the same on one device; empty for one that costs nothing."""
    if isinstance(action, Snapshot):
        return f"copy {_tensor(action.source.meta.get('val'))}"
    call = call_of(action)
    if call is None:
        return ""
    numbers: dict[fx.Node, int] = {}

    def text(node: fx.Node) -> _Plain:
        number = numbers.setdefault(node, len(numbers))
        return _Plain(f"#{number}:{_value(node.meta.get('val'))}")

    args, kwargs = fx.map_arg((call.node.args, dict(call.node.kwargs)), text)
    guise = "recorded " if isinstance(action, RecordedCall) else ""
    return f"{guise}{call.node.target}{args}{kwargs or ''}"


def obstacle(action: Action) -> str:
    """Why an action must not be carried out on the side; empty where it may."""
    if isinstance(action, Snapshot):
        return _sizes_obstacle([action.source])
    call = call_of(action)
    if call is None:
        return ""
    target = call.node.target
    if not isinstance(target, OpOverload) or target.namespace not in _HARMLESS:
        return "it may hide state"
    if target._schema.name in _STOPPING or call.node.meta.get("val") is None:
        return "it has an effect"
    if any(isinstance(constant, torch.Generator) for constant in _constants(call.node)):
        return "it draws from a generator of its own"
    return _sizes_obstacle([call.node, *call.node.all_input_nodes])


def _sizes_obstacle(nodes: list[fx.Node]) -> str:
    for tensor in (t for node in nodes for t in tensors_in(node.meta.get("val"))):
        if tensor.layout is not torch.strided:
            return "its tensors are not dense"
        if not all(type(size) is int for size in (*tensor.shape, *tensor.stride(), tensor.storage_offset())):
            return "its sizes depend on data"
    return ""


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors that a node stands for, by what tracing recorded of it."""
    items = value if isinstance(value, (tuple, list)) else [value]
    return [item for item in items if isinstance(item, torch.Tensor)]


def _constants(node: fx.Node) -> list[Any]:
    return [*node.args, *node.kwargs.values()]


class _Plain:
    """Text that prints without quotes."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _value(value: Any) -> str:
    return _tensor(value) if isinstance(value, torch.Tensor) else str(value)


def _tensor(tensor: torch.Tensor) -> str:
    """Type, shape, strides, and how far the first element is from where vectors are read whole."""
    offset = tensor.storage_offset() * tensor.element_size() % 16
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"{kind}{list(tensor.shape)}/{list(tensor.stride())}{f'+{offset}' if offset else ''}"
