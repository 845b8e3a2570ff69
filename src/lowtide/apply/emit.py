"""From a sequence of runs to the two modules that carry it out.

Every run becomes one call, in order, on the newest copies of what it reads; the generated code lets go of each tensor
after its last use, so that memory holds what the referee said it would. Views are made anew from the newest copy of
their storage where they are needed.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from lowtide import _compat
from lowtide.apply.replay import draw_again, draw_mask, draw_mask_again, record, take_state
from lowtide.captured import Call, Captured, Enter, Give, RandomCall, RecordedCall, Snapshot, StatisticsCall, TakeState


class Emitted(NamedTuple):
    """What carries a sequence out.

    forward    the forward module, in AOTAutograd's calling convention
    backward   the backward module likewise; the `meta` of its calls says which piece of the schedule they belong to
    schedule   the inputs whose gradients each piece hands over, in order
    """

    forward: fx.GraphModule
    backward: fx.GraphModule
    schedule: tuple[tuple[int, ...], ...]


def emit(captured: Captured, runs: Sequence[int]) -> Emitted:
    """The forward and the backward module of a valid sequence."""
    return _Emission(captured, runs).emitted()


def is_tangent(node: fx.Node) -> bool:
    """Whether a placeholder of a joint graph is the gradient of an output."""
    return "tangents" in str(node.target)


class _Emission:
    """The state of writing the modules: the newest copy of every node, in the module being written."""

    def __init__(self, captured: Captured, runs: Sequence[int]) -> None:
        self.captured = captured
        self.joint = captured.joint.graph
        self.times = Counter(runs)
        entered = next((i for i, op in enumerate(captured.actions) if isinstance(op, Enter)), None)
        cut = runs.index(entered) if entered is not None else len(runs)
        self.forward_runs, self.backward_runs = runs[:cut], runs[cut:]
        self.seen: set[int] = set()
        self.views_of = self._views_by_value()
        self.draws_from = {a.state: i for i, a in enumerate(captured.actions) if isinstance(a, RandomCall)}

    def _views_by_value(self) -> dict[int, list[fx.Node]]:
        found: dict[int, list[fx.Node]] = {}
        for view in self.captured.views:
            value = self.captured.value_of.get(view)
            if value is not None:
                found.setdefault(value, []).append(view)
            else:
                for argument in view.all_input_nodes:
                    found.setdefault(self.captured.value_of.get(argument, -1), []).append(view)
        return found

    def emitted(self) -> Emitted:
        forward = _Writer(self)
        for node in self.joint.find_nodes(op="placeholder"):
            if not is_tangent(node):
                forward.place(node)
        for run in self.forward_runs:
            forward.run(run)
        backward = _Writer(self, source=forward)
        for node in self.joint.find_nodes(op="placeholder"):
            if is_tangent(node):
                backward.place(node)
        schedule = self._schedule()
        for run in self.backward_runs:
            backward.run(run)
            if isinstance(self.captured.actions[run], Give):
                backward.hand_over(schedule[len(backward.ends)])
        results = list(self.joint.find_nodes(op="output")[0].args[0])
        descriptions = _compat.output_descriptions(self.joint)
        count = self.captured.forward_outputs
        given_back = [backward.given.get(place, node) for place, node in enumerate(results[count:])]
        returned = [forward.result(node) for node in results[:count]]
        saved = list(backward.saved.values())
        saved_descriptions = [_compat.saved_description(i) for i in range(len(saved))]
        return Emitted(
            forward.module(returned + saved, descriptions[:count] + saved_descriptions),
            backward.module(given_back, descriptions[count:]),
            schedule,
        )

    def _schedule(self) -> tuple[tuple[int, ...], ...]:
        """The gradients handed over at each run that does so; what is read again later goes with the last of them."""
        found: list[list[int]] = []
        read_later: set[int] = set()
        results = self.joint.find_nodes(op="output")[0].args[0][self.captured.forward_outputs :]
        for run in reversed(self.backward_runs):
            action = self.captured.actions[run]
            if isinstance(action, Give):
                now = [place for place in action.places if self.captured.value_of[results[place]] not in read_later]
                found.append(now)
                found[0] += [place for place in action.places if place not in now]
            else:
                read_later.update(self.captured.program.ops[run].reads)
        return tuple(map(tuple, reversed(found)))


class _Writer:
    """One module being written.

    copies   newest copy of each node of the joint graph, in this module
    saved    what this module takes over from `source`: the node there, by the name of its placeholder here
    given    gradients handed over so far, by the place of the input that they are of
    ends     the last node of each piece so far
    """

    def __init__(self, emission: _Emission, source: _Writer | None = None) -> None:
        self.emission = emission
        self.captured = emission.captured
        self.graph = fx.Graph()
        self.copies: dict[fx.Node, fx.Node] = {}
        self.states: dict[int, fx.Node] = {}
        self.clones: dict[fx.Node, fx.Node] = {}
        self.source = source
        self.saved: dict[str, fx.Node] = {}
        self.first: fx.Node | None = None
        self.given: dict[int, Any] = {}
        self.ends: list[fx.Node | None] = []

    def place(self, node: fx.Node) -> fx.Node:
        """A placeholder for an input of the joint graph."""
        copy = self._placeholder(node)
        self.copies[node] = copy
        self.first = self.first or copy
        return copy

    def run(self, number: int) -> None:
        """Write one run of an op."""
        action = self.captured.actions[number]
        again = number in self.emission.seen
        self.emission.seen.add(number)
        if isinstance(action, TakeState):
            if self.emission.times[self.emission.draws_from[number]] > 1:
                self.states[number] = self._function(take_state, (action.device,), _state_like(action.device))
        elif isinstance(action, Snapshot):
            # The copy is made in any case; unless backward takes it over, it is dead code and goes away again.
            source = self._tensor(action.source)
            assert source is not None
            self.clones[action.source] = self._function(torch.ops.aten.clone.default, (source,), source.meta["val"])
        elif isinstance(action, Call):
            self._call(number, action, action.node.target, self._arguments(action.node))
        elif isinstance(action, RecordedCall):
            args, kwargs = self._arguments(action.call.node)
            self._call(number, action.call, record, ((action.call.node.target, *args), kwargs))
        elif isinstance(action, RandomCall):
            args, kwargs = self._arguments(action.call.node)
            target = action.call.node.target
            if _draws_mask(action.call.node):
                target = draw_mask_again if again else draw_mask
                args = (action.device, self._state(action.state), *args) if again else args
            elif again:
                args = (action.device, self._state(action.state), target, *args)
                target = draw_again
            self._call(number, action.call, target, (args, kwargs))
        elif isinstance(action, StatisticsCall):
            args, kwargs = self._arguments(action.call.node)
            if again:
                args = tuple(None if i in action.statistics else a for i, a in enumerate(args))
            self._call(number, action.call, action.call.node.target, (args, kwargs))

    def _call(self, number: int, call: Call, target: Any, arguments: tuple[Any, Any]) -> None:
        args, kwargs = arguments
        made = self.graph.create_node("call_function", target, args, kwargs, name=call.node.name)
        made.meta = dict(call.node.meta)
        self._forget_views(number)
        if not call.parts:
            self.copies[call.node] = made
        for part in call.parts:
            copy = self.graph.create_node("call_function", operator.getitem, (made, part.args[1]), {}, name=part.name)
            copy.meta = dict(part.meta)
            self.copies[part] = copy

    def _forget_views(self, number: int) -> None:
        """Views of older copies of what an op writes are not views of the new ones."""
        pending = [
            v for value in self.captured.program.ops[number].writes for v in self.emission.views_of.get(value, ())
        ]
        for view in pending:
            self.copies.pop(view, None)

    def _arguments(self, node: fx.Node) -> tuple[Any, Any]:
        return fx.map_arg(node.args, self._tensor), fx.map_arg(node.kwargs, self._tensor)

    def _tensor(self, node: fx.Node) -> fx.Node | None:
        """The newest copy of a node, in this module; None for a result that the kernel leaves undefined."""
        if node.target is operator.getitem and node.meta.get("val") is None:
            return None
        if node in self.copies:
            return self.copies[node]
        if node in self.captured.views:
            copy = self.graph.node_copy(node, self._tensor)
        elif node.op == "get_attr":
            copy = self.graph.node_copy(node)
        else:
            copy = self._take_over(node)
        self.copies[node] = copy
        return copy

    def _take_over(self, node: fx.Node) -> fx.Node:
        """A placeholder for what the forward module leaves behind."""
        assert self.source is not None, f"{node} is read before it is made"
        theirs = self.source.clones[node] if node in self.captured.snapshots else self.source._tensor(node)
        return self._receive(theirs)

    def _state(self, number: int) -> fx.Node:
        if number not in self.states:
            assert self.source is not None
            self.states[number] = self._receive(self.source.states[number])
        return self.states[number]

    def _receive(self, theirs: fx.Node) -> fx.Node:
        with self.graph.inserting_before(self.first):
            mine = self._placeholder(theirs)
        self.saved[mine.name] = theirs
        return mine

    def _placeholder(self, like: fx.Node) -> fx.Node:
        made = self.graph.placeholder(like.name)
        # Where the name is taken already it gets another. The generated code would then begin with `name = target`, and
        # of several such lines one may overwrite what the next one reads.
        made.target = made.name
        made.meta = dict(like.meta)
        return made

    def _function(self, target: Any, args: tuple[Any, ...], example: torch.Tensor) -> fx.Node:
        made = self.graph.call_function(target, args)
        made.meta["val"] = example
        return made

    def hand_over(self, places: Sequence[int]) -> None:
        """Gradients go out as they are now, and a piece ends."""
        results = self.emission.joint.find_nodes(op="output")[0].args[0][self.captured.forward_outputs :]
        self.given.update({place: self.result(results[place]) for place in places})
        self.ends.append(next(iter(reversed(self.graph.nodes)), None))

    def result(self, node: Any) -> Any:
        """The newest copy of an output of the joint graph; what is no node stays as it is."""
        return self._tensor(node) if isinstance(node, fx.Node) else node

    def module(self, results: list[Any], descriptions: list[Any]) -> fx.GraphModule:
        """The module that returns these."""
        output = self.graph.output(tuple(results))
        output.meta["desc"] = descriptions
        for clone in self.clones.values():
            if not clone.users:
                self.graph.erase_node(clone)
        piece = 0
        for node in self.graph.nodes:
            node.meta["piece"] = piece
            piece += self.ends.count(node)
        self.graph.lint()
        return fx.GraphModule(self.captured.joint, self.graph)


def _draws_mask(node: fx.Node) -> bool:
    """Whether the node is what tracing makes of a mask that is drawn in place into new memory."""
    like = node.args[0] if node.args else None
    unwritten = isinstance(like, fx.Node) and like.target is torch.ops.aten.empty_like.default
    return unwritten and node.target is torch.ops.aten.bernoulli.p


def _state_like(device: torch.device) -> torch.Tensor:
    """A tensor with the shape of a generator's state, for AOTAutograd to look at."""
    size = torch.get_rng_state().numel() if device.type == "cpu" else 16
    return torch.empty(size, dtype=torch.uint8, device="meta")
