"""The backward module where some outputs got no gradient.

Plain autograd runs nothing for an output that the loss does not use. AOTAutograd gives its backward zeros instead, and
zeros are not nothing: 0 * inf is no number, and -0.0 + 0.0 is 0.0. So the module is cut down to what autograd would
run, once for each set of outputs without a gradient that comes up.
"""

from __future__ import annotations

import copy
import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from lowtide import _compat

_NONE: frozenset[int] = frozenset()
_reached = threading.local()
_ACCUMULATING = torch.ops.aten.add.Tensor


def backward_function(
    module: fx.GraphModule,
    tangents: Sequence[int],
    function: Callable[[fx.GraphModule], Callable[[list[Any]], Any]] | None = None,
) -> Callable[[list[Any]], Any]:
    """The backward module as a boxed function; `tangents` are the outputs that its gradients belong to, in order.

    `function` makes a function of a module, where it is another than the module's own.
    """
    make = function or _boxed
    functions: dict[frozenset[int], Callable[..., Any]] = {_NONE: make(module)}

    def run(args: list[Any]) -> Any:
        missing = getattr(_reached, "missing", _NONE)
        _reached.missing = _NONE
        if missing not in functions:
            lost = [place for place, output in enumerate(tangents) if output in missing]
            functions[missing] = make(without(module, lost))
        return functions[missing](args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _boxed(module: fx.GraphModule) -> Callable[[list[Any]], Any]:
    """The module's boxed function; what it is given and never reads goes at once, not at its end."""
    function = _compat.boxed(module, ())
    unread = [place for place, node in enumerate(module.graph.find_nodes(op="placeholder")) if not node.users]
    if not unread:
        return function

    def run(args: list[Any]) -> Any:
        for place in unread:
            args[place] = None
        return function(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def watch(outputs: Any, tangents: Sequence[int]) -> None:
    """Note which outputs of a graph got no gradient when its backward begins; a hook that runs right before it."""
    node = _compat.backward_node(outputs) if len(tangents) > 1 else None
    if node is not None:
        node.register_prehook(_note)


def _note(gradients: Sequence[Any]) -> None:
    _reached.missing = frozenset(i for i, gradient in enumerate(gradients) if gradient is None)


def without(module: fx.GraphModule, missing: Sequence[int]) -> fx.GraphModule:
    """The module with the gradients at these places among the incoming ones taken for missing."""
    graph = copy.deepcopy(module.graph)
    tangents = [node for node in graph.find_nodes(op="placeholder") if "tangents" in str(node.target)]
    undefined = {tangents[i] for i in missing}
    depends = set(tangents)
    replaced: dict[fx.Node, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        gradients = [argument for argument in node.all_input_nodes if argument in depends]
        if not gradients:
            continue
        depends.add(node)
        lost = [argument for argument in gradients if argument in undefined]
        if len(lost) == len(gradients):
            undefined.add(node)
        elif lost and node.target is _ACCUMULATING and len(node.args) == 2 and not node.kwargs:
            (kept,) = (argument for argument in gradients if argument not in undefined)
            replaced[node] = replaced.get(kept, kept)
            node.replace_all_uses_with(replaced[node])
        elif lost and node.target is not operator.getitem:
            with graph.inserting_before(node):
                for argument in lost:
                    node.replace_input_with(argument, _zeros(graph, argument))
    output = graph.find_nodes(op="output")[0]
    output.args = fx.map_arg(output.args, lambda node: None if node in undefined else node)
    graph.eliminate_dead_code()
    graph.lint()
    return fx.GraphModule(module, graph)


def _zeros(graph: fx.Graph, like: fx.Node) -> fx.Node:
    example = like.meta["val"]
    made = graph.call_function(
        torch.ops.aten.full.default,
        (list(example.shape), 0),
        {"dtype": example.dtype, "device": example.device, "pin_memory": False},
    )
    made.meta["val"] = example
    return made
