"""Estimated times, worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from lowtide.captured import Call, Captured, Leave, RandomCall, RecordedCall, Snapshot, TakeState
from lowtide.measure.roofline import CPU, H100, Device, device_like, estimate
from lowtide.program import Op, Phase, Program

# One operation a nanosecond on four-byte numbers, ten on two-byte ones; two bytes a nanosecond; 7 ns a call.
DEVICE = Device("slow", "cpu", {8: 5e8, 4: 1e9, 2: 1e10, 1: 1e10}, 2e9, 7)
CPU_DEVICE = torch.device("cpu")


def graph_of(function: Callable[..., object], *inputs: torch.Tensor) -> fx.GraphModule:
    return make_fx(function)(*inputs)


def last_call(function: Callable[..., object], *inputs: torch.Tensor) -> fx.Node:
    return [node for node in graph_of(function, *inputs).graph.nodes if node.op == "call_function"][-1]


def ns(action: object, device: Device = DEVICE) -> int:
    program = Program((), (Op("op", Phase.FORWARD, (), ()),))
    captured = Captured(CPU_DEVICE, program, None, 0, (action,), {}, frozenset(), {}, frozenset())  # type: ignore[arg-type]
    return estimate(captured, device).ops[0].ns


def test_a_product_takes_as_long_as_its_arithmetic() -> None:
    """2 x 30 x 40 x 50 operations, against 4 x (1200 + 2000 + 1500) bytes at two a nanosecond."""
    node = last_call(torch.mm, torch.randn(30, 40), torch.randn(40, 50))
    assert ns(Call(node, ())) == 7 + 2 * 30 * 40 * 50


def test_the_size_of_the_numbers_chooses_the_speed() -> None:
    """In half precision the same product is bound by memory: 2 x 4700 bytes; in double by half the speed."""
    half = last_call(torch.mm, torch.zeros(30, 40, dtype=torch.half), torch.zeros(40, 50, dtype=torch.half))
    assert ns(Call(half, ())) == 7 + 120_000 // 10
    slow = Device("memory", "cpu", DEVICE.flops, 1e8, 7)
    assert ns(Call(half, ()), slow) == 7 + 2 * 4700 * 10
    double = last_call(torch.mm, torch.zeros(30, 40, dtype=torch.double), torch.zeros(40, 50, dtype=torch.double))
    assert ns(Call(double, ())) == 7 + 2 * 120_000


def test_what_no_formula_is_known_for_takes_as_long_as_its_traffic() -> None:
    """It reads two tensors of 100 numbers and writes one."""
    node = last_call(torch.add, torch.randn(100), torch.randn(100))
    assert ns(Call(node, ())) == 7 + 3 * 400 // 2


def test_all_results_are_traffic() -> None:
    """Values and places of the largest in each of 10 rows: 10 x 4 and 10 x 8 bytes, from 400."""
    call = next(n for n in graph_of(lambda x: torch.max(x, 1), torch.randn(10, 10)).graph.nodes if "max" in n.name)
    assert ns(Call(call, ())) == 7 + (400 + 40 + 80) // 2


def test_other_actions() -> None:
    """A call in any guise takes as long as the call; a copy reads and writes; what runs nothing takes nothing."""
    node = last_call(torch.add, torch.randn(100), torch.randn(100))
    call = Call(node, ())
    assert ns(RecordedCall(call)) == ns(RandomCall(call, CPU_DEVICE, 0)) == ns(call)
    assert ns(Snapshot(node)) == 7 + 2 * 400 // 2
    assert ns(Leave()) == ns(TakeState(CPU_DEVICE)) == 0


def test_devices_by_kind() -> None:
    assert device_like("cpu") is CPU
    assert device_like("cuda") is H100
