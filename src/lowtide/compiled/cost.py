"""Estimated nanoseconds of kernels: arithmetic or memory traffic, whichever takes longer.

A fused kernel reads what it reads once and writes what is held of it, whatever it works out in between. A call of a
library is taken as `measure.roofline` takes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry

from lowtide.compiled.kernels import Kernel
from lowtide.compiled.partitioned import Partitioned
from lowtide.device import Device


def estimate(step: Partitioned, device: Device) -> Partitioned:
    """A partitioned graph with estimated nanoseconds in its Program."""
    ops = tuple(
        replace(op, ns=0 if kernel is None else _ns(kernel, device))
        for op, kernel in zip(step.program.ops, step.kernels, strict=True)
    )
    return replace(step, program=replace(step.program, ops=ops), costs=f"estimated for {device.name} (roofline)")


def _ns(kernel: Kernel, device: Device) -> int:
    arithmetic = sum(_arithmetic(node, device) for node in kernel.nodes)
    traffic = _bytes((*kernel.reads, *kernel.results)) / device.bandwidth * 1e9
    return device.launch + int(max(arithmetic, traffic))


def _arithmetic(node: fx.Node, device: Device) -> float:
    formula = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if formula is None:
        return 0.0
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    item = max((n.meta["val"].element_size() for n in node.all_input_nodes if _is_tensor(n)), default=4)
    return float(formula(*args, **kwargs, out_val=node.meta["val"])) / device.flops[min(8, max(1, item))] * 1e9


def _bytes(nodes: Iterable[fx.Node]) -> int:
    return sum(n.meta["val"].numel() * n.meta["val"].element_size() for n in nodes if _is_tensor(n))


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)
