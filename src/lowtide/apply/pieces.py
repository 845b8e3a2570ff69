"""The backward pass as a chain of autograd's own nodes, so that each gradient is handed over when it is made.

One function for the whole of backward hands all gradients over at its end, where plain autograd adds each into `.grad`,
runs its hooks and lets it go as it is made. So the backward module is cut where gradients are to be handed over. Each
piece is an autograd function of its own, whose inputs are the parameters that it makes the gradients of; what orders
them is a tensor of no elements that each hands to the next. AOTAutograd's function has only the first of these tensors
for an input that wants a gradient: it comes first, takes over what was saved, and starts the chain. Everything that
autograd does with a gradient (adding, hooks, leaving out what nobody asked for) it goes on doing itself.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from lowtide import _compat

Refuse = Callable[..., Any]
Around = Callable[[Any], AbstractContextManager[Any]]
_under_way = threading.local()


@dataclass(frozen=True)
class Piece:
    """A part of a backward module.

    function   takes its arguments as one list, which it empties
    reads      names of what it reads
    last       those of them that no later piece reads
    results    places among the module's results of the gradients that it makes, in order
    leaves     names of what it makes for later pieces, in order
    """

    function: Callable[[list[Any]], Any]
    reads: tuple[str, ...]
    last: frozenset[str]
    results: tuple[int, ...]
    leaves: tuple[str, ...]


@dataclass(frozen=True)
class Cut:
    """A backward module in pieces.

    arguments   names of what the module is given, in order
    pieces      in the order in which they run
    """

    arguments: tuple[str, ...]
    pieces: tuple[Piece, ...]


Schedule = Sequence[Sequence[int]]


def cut(module: fx.GraphModule, schedule: Schedule) -> Cut:
    """The module cut into pieces: each node belongs to the piece in its `meta`, each result to one of the schedule."""
    graph = module.graph
    results = list(graph.find_nodes(op="output")[0].args[0])
    piece_by_place = {place: piece for piece, places in enumerate(schedule) for place in places}
    handed = [piece_by_place.get(place, len(schedule) - 1) for place in range(len(results))]
    piece_of: dict[fx.Node, int] = {}
    present = 0
    for node in graph.nodes:
        if node.op == "call_function":
            present = piece_of[node] = max(present, node.meta.get("piece", present))
    wanted: dict[fx.Node, set[int]] = {}  # the pieces that read a node, after its own
    for node, piece in piece_of.items():
        for argument in node.all_input_nodes:
            wanted.setdefault(argument, set()).add(piece)
    for place, result in enumerate(results):
        if isinstance(result, fx.Node):
            wanted.setdefault(result, set()).add(max(handed[place], piece_of.get(result, 0)))
    return Cut(
        tuple(node.name for node in graph.find_nodes(op="placeholder")),
        tuple(_piece(module, number, piece_of, wanted, results, handed) for number in range(len(schedule))),
    )


def _piece(
    module: fx.GraphModule,
    number: int,
    piece_of: dict[fx.Node, int],
    wanted: dict[fx.Node, set[int]],
    results: Sequence[Any],
    handed: Sequence[int],
) -> Piece:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    read = [n for n in module.graph.nodes if number in wanted.get(n, ()) and piece_of.get(n) != number]
    for node in read:
        if node.op == "get_attr":
            copies[node] = graph.node_copy(node)
    read = [node for node in read if node.op != "get_attr"]
    for node in read:
        copies[node] = graph.placeholder(node.name)
        copies[node].target = copies[node].name
    for node, piece in piece_of.items():
        if piece == number:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    mine = [
        place
        for place, result in enumerate(results)
        if isinstance(result, fx.Node) and max(handed[place], piece_of.get(result, 0)) == number
    ]
    leaves = [n for n, piece in piece_of.items() if piece == number and max(wanted.get(n, {number})) > number]
    graph.output(tuple(copies[node] for node in (*(results[place] for place in mine), *leaves)))
    graph.lint()
    return Piece(
        _compat.boxed(fx.GraphModule(module, graph), ()),
        tuple(node.name for node in read),
        frozenset(node.name for node in read if max(wanted[node]) == number),
        tuple(mine),
        tuple(node.name for node in leaves),
    )


class Pass:
    """One call's backward passes: what is alive between the pieces of the one under way."""

    def __init__(self, device: torch.device, refuse: Refuse) -> None:
        self.device = device
        self.refuse = refuse
        self._live: dict[str, Any] = {}
        self._pieces: tuple[Piece, ...] = ()

    def begin(self, cut: Cut, arguments: list[Any], around: Around) -> None:
        """A backward pass begins; `arguments` is emptied, and what no piece reads goes at once.

        Each piece runs within `around`, which is given all that is alive then.
        """
        self._around = around
        read = {name for piece in cut.pieces for name in piece.reads}
        self._live = {n: value for n, value in zip(cut.arguments, arguments, strict=True) if n in read}
        arguments.clear()
        self._pieces = cut.pieces
        _compat.when_backward_ends(self._live.clear)

    def run(self, number: int) -> dict[int, torch.Tensor]:
        """The gradients that a piece makes, by their place among the module's results."""
        if number >= len(self._pieces):
            return {}
        piece, live = self._pieces[number], self._live
        arguments = [live.pop(name) if name in piece.last else live[name] for name in piece.reads]
        try:
            with self._around([arguments, live]), torch.no_grad(), _compat.without_autocast():
                made = list(piece.function(arguments))
        except BaseException:
            live.clear()
            raise
        live.update(zip(piece.leaves, made[len(piece.results) :], strict=True))
        return dict(zip(piece.results, made, strict=False))

    def link(self) -> torch.Tensor:
        """What orders the nodes: a gradient on the device, so that autograd runs them in that device's thread."""
        return torch.empty(0, device=self.device)


class _GradientPiece(torch.autograd.Function):
    """One piece, as autograd sees it: from the link before it and its parameters to a link."""

    @staticmethod
    def forward(ctx: Any, step: Pass, number: int, places: Sequence[int], _: Any, *inputs: Any) -> torch.Tensor:
        ctx.step, ctx.number, ctx.places = step, number, places
        return step.link()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        made = ctx.step.run(ctx.number)
        gradients = tuple(made.pop(place, None) for place in ctx.places)
        if torch.is_grad_enabled():
            gradients = ctx.step.refuse(gradients)
        return None, None, None, ctx.step.link() if ctx.needs_input_grad[3] else None, *gradients


def _chain(step: Pass, schedule: Schedule, inputs: Sequence[Any]) -> tuple[torch.Tensor, list[Any]]:
    """The link that AOTAutograd's function is to take, and the inputs as it is to take them: cut from autograd, which
    reaches them through the pieces.
    """
    given = list(inputs)
    before: Any = None
    for number in reversed(range(len(schedule))):
        places = schedule[number]
        before = _GradientPiece.apply(step, number, places, before, *(inputs[place] for place in places))
        for place in places:
            given[place] = inputs[place].detach()
    return before, given


def in_pieces(compiled: Callable[..., Any], schedule: Schedule, inputs: Sequence[Any], refuse: Refuse) -> Any:
    """The outputs of AOTAutograd's callable, with a backward pass in pieces; `refuse` has gradients pass through it
    where they want gradients themselves. `schedule` are the inputs whose gradients each piece makes.
    """
    step = Pass(_device(inputs), refuse)
    before, given = _chain(step, schedule, inputs)
    outputs = compiled(*given, before)
    node = _compat.backward_node(outputs)
    assert node is not None, "an output that wants a gradient has a node"
    node.register_prehook(lambda _: setattr(_under_way, "step", step))
    return outputs


def starting(schedule: Schedule, around: Around) -> Callable[[fx.GraphModule], Callable[[list[Any]], Any]]:
    """What makes of a backward module the function that begins it, and gives no gradient but the link's, the last.

    Each piece runs within `around`.
    """

    def function(module: fx.GraphModule) -> Callable[[list[Any]], Any]:
        pieces = cut(module, schedule)
        results = len(module.graph.find_nodes(op="output")[0].args[0])

        def run(arguments: list[Any]) -> Any:
            step: Pass = _under_way.step
            del _under_way.step
            step.begin(pieces, arguments, around)
            return (*[None] * (results - 1), step.link())

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    return function


def with_link(graph: fx.GraphModule) -> fx.GraphModule:
    """The front end's graph with one more input, the last, that nothing reads."""
    changed = fx.GraphModule(graph, copy.deepcopy(graph.graph))
    inputs = changed.graph.find_nodes(op="placeholder")
    with changed.graph.inserting_after(inputs[-1]) if inputs else changed.graph.inserting_before():
        changed.graph.placeholder("lowtide_link")
    changed.recompile()
    return changed


def link(inputs: Sequence[Any]) -> torch.Tensor:
    """An example of a link for these inputs, which wants a gradient where one of them does."""
    wanted = any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs)
    return torch.empty(0, device=_device(inputs), requires_grad=wanted)


def _device(inputs: Sequence[Any]) -> torch.device:
    found = (x.device for x in inputs if isinstance(x, torch.Tensor) and x.device.type != "cpu")
    return next(found, torch.device("cpu"))
