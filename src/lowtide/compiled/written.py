"""Inputs that the step writes to: backward must read what they were.

A joint graph is one of pure calls, in which an input that forward writes to at its end still is what it was when
backward reads it. Once the graph is cut in two, it is not: PyTorch's own partitioner has backward read the input, or
make again something from it, and the gradients are wrong without a word. Where backward needs such an input, or
anything that could be made from it, a copy is taken first and read in its place.
"""

from __future__ import annotations

import torch
from torch import fx

from lowtide import _compat
from lowtide.capture.behind import made_from


def protect(joint: fx.GraphModule, outputs: int) -> None:
    """Have every call of a joint graph read a copy of an input that the step writes to, if backward may need it."""
    graph = joint.graph
    results = list(graph.find_nodes(op="output")[0].args[0])
    needed = made_from([node for node in results[outputs:] if isinstance(node, fx.Node)])
    for node in written(graph, outputs):
        readers = [user for user in node.users if user.op == "call_function" and not _writes_to(user, node)]
        if not any(user in needed for user in readers):
            continue
        with graph.inserting_after(node):
            copy = graph.call_function(torch.ops.aten.clone.default, (node,))
        copy.meta["val"] = node.meta["val"].clone()
        copy.meta.update({key: node.meta[key] for key in ("tensor_meta", "stack_trace") if key in node.meta})
        _compat.never_recompute(copy)
        for user in readers:
            user.replace_input_with(node, copy)
    _after_inputs(graph)
    joint.recompile()


def written(graph: fx.Graph, outputs: int) -> list[fx.Node]:
    """The inputs that are written to: within the graph, or after it, by what it returns for them."""
    descriptions = _compat.output_descriptions(graph)[:outputs]
    after = {_compat.mutated_input(description) for description in descriptions} - {None}
    found = []
    for node in graph.find_nodes(op="placeholder"):
        within = any(_writes_to(user, node) for user in node.users)
        if isinstance(node.meta.get("val"), torch.Tensor) and (within or node.meta.get("desc") in after):
            found.append(node)
    return found


def _writes_to(user: fx.Node, node: fx.Node) -> bool:
    target = user.target
    return (
        isinstance(target, _compat.OpOverload)
        and target._schema.is_mutable
        and any(
            argument is node and (parameter.alias_info is not None and parameter.alias_info.is_write)
            for argument, parameter in zip(user.args, target._schema.arguments, strict=False)
        )
    )


def _after_inputs(graph: fx.Graph) -> None:
    """Calls that stand among the inputs go behind the last of them."""
    inputs = graph.find_nodes(op="placeholder")
    last = list(inputs)[-1] if inputs else None
    misplaced = []
    for node in graph.nodes:
        if node is last:
            break
        if node.op == "call_function":
            misplaced.append(node)
    for node in reversed(misplaced):
        assert last is not None
        last.append(node)
