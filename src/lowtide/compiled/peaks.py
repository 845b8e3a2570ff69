"""The bytes of a whole step, forward and backward, from the code that Inductor wrote for its graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from lowtide import _compat
from lowtide.allocator import charged
from lowtide.compiled.code import Blank, Ledger, View, blank, carry_out
from lowtide.compiled.partitioned import Partitioned, is_tangent


@dataclass(frozen=True, eq=False)
class Written:
    """What Inductor wrote for one graph.

    parts      the graph
    modules    its forward and backward module, as they were compiled
    forward    the code of the one
    backward   and of the other
    """

    parts: Partitioned
    modules: tuple[fx.GraphModule, fx.GraphModule]
    forward: str
    backward: str


@dataclass(frozen=True, slots=True)
class Peaks:
    """What memory holds in a compiled step beyond what is static.

    forward    bytes at the peak of the forward code
    between    bytes while the loss is worked out and its gradient comes in
    backward   bytes at the peak of the backward code
    where      the call at the highest of them
    """

    forward: int
    between: int
    backward: int
    where: str

    @property
    def peak(self) -> int:
        """The highest."""
        return max(self.forward, self.between, self.backward)


def peaks(graphs: Sequence[Written]) -> Peaks:
    """What the code of a step's graphs holds, forwards in order and backwards in reverse, outputs held to the end."""
    last = graphs[-1].parts
    ledger = Ledger(last.kind)
    kept = [_forward(graph, ledger) for graph in graphs]
    forward, where = ledger.peak, ledger.at
    ledger.hold([_bytes(charged(8, last.kind)) for _ in range(2)])  # The loss and its gradient.
    between = 0
    ledger.peak = 0
    for graph, saved in zip(reversed(graphs), reversed(kept), strict=True):
        tangents = _tangents(graph)
        ledger.hold(list(tangents.values()), "the gradients of the outputs")
        if graph is graphs[-1]:
            enter = last.program.ops[last.entered]
            between = ledger.now + enter.scratch
        _backward(graph, saved, tangents, ledger)
    if max(between, ledger.peak) > forward:
        where = ledger.at if ledger.peak > between else last.program.ops[last.entered].name
    return Peaks(forward, between, ledger.peak, where)


def _forward(graph: Written, ledger: Ledger) -> list[Any]:
    """Carry out the forward code; what it saves for backward."""
    module, outputs = graph.modules[0].graph, graph.parts.outputs
    returned = carry_out(graph.forward, [_static(node) for node in module.find_nodes(op="placeholder")], ledger)
    for position, description in enumerate(_compat.output_descriptions(module)[:outputs]):
        if _compat.mutated_input(description) is not None:
            ledger.drop(returned[position])  # Copied into the input, and gone.
    return returned[outputs:]


def _tangents(graph: Written) -> dict[fx.Node, Any]:
    return {
        node: blank(node.meta["val"])
        for node in graph.modules[1].graph.find_nodes(op="placeholder")
        if is_tangent(node)
    }


def _backward(graph: Written, saved: list[Any], tangents: dict[fx.Node, Any], ledger: Ledger) -> None:
    """Carry out the backward code; gradients that are handed on are gone when it is over."""
    if not _compat.INCOMING_GRADIENTS_ARE_FREED:
        ledger.hold(list(tangents.values()))
    waiting = iter(saved)
    places = graph.modules[1].graph.find_nodes(op="placeholder")
    returned = carry_out(
        graph.backward, [tangents[node] if node in tangents else next(waiting) for node in places], ledger
    )
    for position, gradient in enumerate(returned):
        if position in graph.parts.handed_on:
            ledger.drop(gradient)


def _bytes(size: int) -> View:
    return View(Blank(size), torch.empty(0, device="meta"))


def _static(node: fx.Node) -> Any:
    """An input of forward: it is there all along, so its storage counts for nothing."""
    value = blank(node.meta.get("val"))
    return View(Blank(0), value.tensor) if isinstance(value, View) else value
