"""Estimated costs: each op takes as long as its arithmetic or its memory traffic, whichever is longer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry

from lowtide.captured import Action, Call, Captured, Snapshot
from lowtide.program import Program


@dataclass(frozen=True, slots=True)
class Device:
    """What a device can do at best.

    name        for people
    kind        "cuda" or "cpu": whose kernels and whose allocator
    flops       arithmetic operations a second, by bytes an element of the operands (matrix units where it has them)
    bandwidth   bytes a second to and from memory
    launch      nanoseconds that even the smallest call takes
    """

    name: str
    kind: str
    flops: dict[int, float]
    bandwidth: float
    launch: int


CPU = Device("cpu", "cpu", {8: 2e10, 4: 5e10, 2: 5e10, 1: 5e10}, 1e10, 4_000)
H100 = Device("h100", "cuda", {8: 3e13, 4: 3e14, 2: 7e14, 1: 1.2e15}, 2.8e12, 4_000)


def estimate(captured: Captured, device: Device) -> Program:
    """The Program of a captured graph with estimated nanoseconds."""
    ops = tuple(
        replace(op, ns=_ns(action, device)) for op, action in zip(captured.program.ops, captured.actions, strict=True)
    )
    return replace(captured.program, ops=ops)


def device_like(kind: str) -> Device:
    """The device to estimate for where only the kind of the tensors' device is known."""
    return CPU if kind == "cpu" else H100


def _ns(action: Action, device: Device) -> int:
    if isinstance(action, Snapshot):
        return device.launch + _traffic_ns([action.source, action.source], device)
    call = action if isinstance(action, Call) else getattr(action, "call", None)
    if call is None:
        return 0
    node = call.node
    arithmetic = _flops(node) / device.flops[min(8, max(1, _item_bytes(node)))] * 1e9
    return device.launch + int(max(arithmetic, _traffic_ns([node, *node.all_input_nodes], device)))


def _traffic_ns(nodes: list[fx.Node], device: Device) -> int:
    count = sum(t.numel() * t.element_size() for node in nodes for t in _tensors(node))
    return int(count / device.bandwidth * 1e9)


def _flops(node: fx.Node) -> float:
    formula = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if formula is None:
        return 0
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    return float(formula(*args, **kwargs, out_val=node.meta["val"]))


def _item_bytes(node: fx.Node) -> int:
    return max((t.element_size() for t in _tensors(node)), default=4)


def _tensors(node: fx.Node) -> Iterator[torch.Tensor]:
    value: Any = node.meta.get("val")
    for item in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(item, torch.Tensor):
            yield item
