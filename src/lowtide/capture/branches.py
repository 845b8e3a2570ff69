"""Branches on data that can be decided while tracing: those on whole numbers and truth values made without any model.

Plain PyTorch looks whether an attention mask masks anything, or whether positions are in order, and takes a shorter way
where they are. The front end would end its graph there. What such a branch depends on is worked out here from the
arguments themselves, or from nothing at all, and the step is traced for the way it takes; calls whose arguments go
another way are traced anew.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from lowtide import _compat
from lowtide.capture.behind import made_from

_WHOLE = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
# What gives other numbers each time, by how the names of such functions begin.
_ARBITRARY = ("rand", "empty", "new_empty", "bernoulli", "multinomial", "normal", "poisson")
_ASSIGNING = {operator.setitem, operator.iadd, operator.isub, operator.imul, operator.iand, operator.ior, operator.ixor}
_ASSIGNING |= {operator.ifloordiv, operator.imod, operator.ipow, operator.ilshift, operator.irshift, operator.itruediv}


@dataclass(frozen=True)
class Decision:
    """What a branch comes to.

    value    the truth value
    source   the argument that it depends on; None where it depends on none
    decide   from that argument to the truth value
    """

    value: bool
    source: Any
    decide: Callable[[Tensor], bool]


def decided(node: fx.Node) -> Decision | None:
    """What a branch on this node of the front end's graph comes to; None where only the step itself can tell."""
    behind = made_from([node])
    order = [each for each in node.graph.nodes if each in behind]
    inputs = [each for each in order if each.op == "placeholder"]
    if len(inputs) > 1 or not all(map(_is_decidable, order)) or any(map(_writes, _made_of(order))):
        return None

    def decide(argument: Tensor | None) -> bool:
        found: dict[fx.Node, Any] = {}
        with _compat.plain_tensors(), torch.no_grad():
            for each in order:
                found[each] = argument if each.op == "placeholder" else _call(each, found)
            return bool(found[node])

    argument = _compat.argument_of(inputs[0]) if inputs else None
    if inputs and (argument is None or argument.device.type == "meta"):
        return None
    return Decision(decide(argument), _compat.source_of(inputs[0]) if inputs else None, decide)


def _made_of(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """What uses these nodes, and what uses the whole numbers that those give, which may be views."""
    found: set[fx.Node] = set()
    waiting = list(nodes)
    while waiting:
        for user in waiting.pop().users:
            if user not in found:
                found.add(user)
                waiting += [user] if _is_whole(user) else []
    return found


def _is_whole(node: fx.Node) -> bool:
    example = node.meta.get("example_value")
    return isinstance(example, Tensor) and example.dtype in _WHOLE


def _is_decidable(node: fx.Node) -> bool:
    known = node.op in ("placeholder", "call_function", "call_method") and not _name(node).startswith(_ARBITRARY)
    return known and _is_whole(node) and not _writes(node)


def _writes(node: fx.Node) -> bool:
    """Whether a call may write to what it is given."""
    name = _name(node)
    in_place = name.endswith("_") and not name.endswith("__")
    called = node.op in ("call_function", "call_method")
    return called and (in_place or node.target in _ASSIGNING or "out" in node.kwargs)


def _name(node: fx.Node) -> str:
    return str(node.target if isinstance(node.target, str) else getattr(node.target, "__name__", node.target))


def _call(node: fx.Node, found: dict[fx.Node, Any]) -> Any:
    args, kwargs = (fx.map_arg(given, found.__getitem__) for given in (node.args, node.kwargs))
    if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "meta":
        kwargs = {**kwargs, "device": "cpu"}  # Whole numbers are the same on every device.
    if isinstance(node.target, str):
        return getattr(args[0], node.target)(*args[1:], **kwargs)
    return node.target(*args, **kwargs)
