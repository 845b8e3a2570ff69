"""Outputs that share memory: each gets its own gradient where plain autograd would add them up in another order.

Of outputs that are views of one tensor, AOTAutograd returns that tensor and makes the views again outside, so that
their gradients are added up before any gradient from inside the model. Plain autograd goes by the order in which the
views and the other uses were made; with three addends or more the sums may differ in the last bit. Such outputs are
passed through a function of their own, behind which each has a gradient of its own, as in plain autograd.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx


class _Apart(torch.autograd.Function):
    """Passes a view on as it is; its gradient comes in here and not at what it is a view of."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.detach()  # A view of nothing, as far as autograd can tell.

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def keep_apart(graph: fx.GraphModule) -> fx.GraphModule:
    """The graph with such outputs kept apart; itself where there are none."""
    apart = [output for outputs in _shared(graph).values() for output in _out_of_order(graph, outputs)]
    if not apart:
        return graph
    changed = fx.GraphModule(graph, copy.deepcopy(graph.graph))
    output = changed.graph.find_nodes(op="output")[0]
    names = {node.name for node in apart}
    made: dict[fx.Node, fx.Node] = {}
    with changed.graph.inserting_before(output):
        for node in output.all_input_nodes:
            if node.name in names:
                made[node] = changed.graph.call_function(_Apart.apply, (node,))
                made[node].meta = dict(node.meta)
    output.args = fx.map_arg(output.args, lambda node: made.get(node, node))
    changed.recompile()
    return changed


def shares_inputs(graph: fx.GraphModule) -> bool:
    """Whether an output lies in memory of an input that wants a gradient, and so is the input's to autograd."""
    wanted = {p for node in graph.graph.find_nodes(op="placeholder") if _wants(node) for p in _memory(node)}
    output = graph.graph.find_nodes(op="output")[0]
    return any(place in wanted for node in output.all_input_nodes for place in _memory(node))


def _wants(node: fx.Node) -> bool:
    example = node.meta.get("example_value")
    return isinstance(example, torch.Tensor) and example.requires_grad


def _shared(graph: fx.GraphModule) -> dict[int, list[fx.Node]]:
    """Outputs that want a gradient, by the memory that several of them share; that of inputs left out."""
    found: dict[int, list[fx.Node]] = {}
    inputs = {place for node in graph.graph.find_nodes(op="placeholder") for place in _memory(node)}
    for node in graph.graph.find_nodes(op="output")[0].all_input_nodes:
        example = node.meta.get("example_value")
        if isinstance(example, torch.Tensor) and example.requires_grad:
            for place in _memory(node):
                if place not in inputs:
                    found.setdefault(place, []).append(node)
    return {place: nodes for place, nodes in found.items() if len(nodes) > 1}


def _out_of_order(graph: fx.GraphModule, outputs: list[fx.Node]) -> list[fx.Node]:
    """Of outputs that share memory those that are views, where the order of their gradients matters."""
    (place,) = _memory(outputs[0])
    order = {node: number for number, node in enumerate(graph.graph.nodes)}
    family = [node for node in graph.graph.nodes if place in _memory(node)]
    views = [node for node in outputs if node is not family[0]]
    uses = {user for node in family for user in node.users if user not in family and user.op != "output"}
    if len(outputs) + len(uses) <= 2 or not uses:
        return []
    return views if max(map(order.__getitem__, uses)) > min(map(order.__getitem__, views)) else []


def _memory(node: fx.Node) -> Iterator[int]:
    example = node.meta.get("example_value")
    if isinstance(example, torch.Tensor) and example.layout is torch.strided:
        yield int(example.untyped_storage()._cdata)
