"""Estimated costs: each op takes as long as its arithmetic or its memory traffic, whichever is longer."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import fx

from lowtide import _compat
from lowtide.captured import Action, Captured, Snapshot
from lowtide.device import CPU, H100, Device
from lowtide.measure.flops import flops
from lowtide.measure.signature import call_of, tensors_in
from lowtide.program import Program


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
    call = call_of(action)
    if call is None:
        return 0
    node = call.node
    arithmetic = flops(node) / _speed(node, device) * 1e9
    return device.launch + int(max(arithmetic, _traffic_ns([node, *node.all_input_nodes], device)))


def _traffic_ns(nodes: list[fx.Node], device: Device) -> int:
    count = sum(t.numel() * t.element_size() for node in nodes for t in tensors_in(node.meta.get("val")))
    return int(count / device.bandwidth * 1e9)


def _speed(node: fx.Node, device: Device) -> float:
    """Operations a second; those on four-byte numbers go by whether TF32 is allowed, as in eager PyTorch."""
    size = min(8, max(1, _item_bytes(node)))
    if size == 4 and device.single:
        convolves = "conv" in str(node.target)
        tf32 = _compat.convolutions_in_tf32() if convolves else torch.get_float32_matmul_precision() != "highest"
        return device.flops[4] if tf32 else device.single
    return device.flops[size]


def _item_bytes(node: fx.Node) -> int:
    return max((t.element_size() for t in tensors_in(node.meta.get("val"))), default=4)
