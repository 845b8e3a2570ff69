"""From AOTAutograd's joint graph to a Program: every storage a value, every call that makes one an op.

Four facts that a graph of pure calls does not say are written into the Program as values and ops of their own, so that
no planner and no referee has to know of them:

- a random call reads the state its generator had, which an op that runs once took just before; tokens of no bytes keep
  these in order;
- an input that the step writes to is read through a copy taken before, since the input itself has changed by the time
  anything runs again;
- a batch norm whose kernel moves its running statistics is ordered against everything that reads them;
- "leave" is where the forward graph hands its outputs out, and "enter" where the gradients of them come in.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace

import torch
from torch import fx

from lowtide import _compat
from lowtide.allocator import charged
from lowtide.capture import hazards, source, storage
from lowtide.capture.step import ENTER, LEAVE
from lowtide.captured import (
    GIVE,
    Action,
    Call,
    Captured,
    Enter,
    Give,
    Leave,
    RandomCall,
    RecordedCall,
    Snapshot,
    StatisticsCall,
    TakeState,
)
from lowtide.errors import UnsupportedModel
from lowtide.program import Op, Phase, Program, Role, Value

TAKE = "take generator state"
# Gradients are handed over together until they are this many bytes, or this share of all of them.
LEAST_HANDED_OVER, PIECES = 2**18, 16


def capture(
    joint: fx.GraphModule,
    forward_outputs: int,
    handed_on: Collection[int] = (),
    kind: str | None = None,
    *,
    early: bool = False,
) -> Captured:
    """The Program of a joint graph whose first `forward_outputs` outputs are forward's, and what carries it out.

    `handed_on` are the positions of inputs that something before the graph made: their gradients are not kept, but
    handed on to it. `kind` is the type of device that the step will run on, where it is another than the tensors';
    what is on the meta device is taken to run on the CPU. `early` gradients of leaves are handed over as they are made.
    """
    device = device_of(joint.graph)
    kind = kind or ("cpu" if device.type == "meta" else device.type)
    return _Builder(joint, forward_outputs, frozenset(handed_on), device, kind, early).build()


def device_of(graph: fx.Graph) -> torch.device:
    """The device whose memory is budgeted: the accelerator that holds most of the inputs, else the CPU."""
    held: dict[torch.device, int] = {}
    for node in graph.find_nodes(op="placeholder"):
        for count, device in storage.sizes(node).values():
            held[device] = held.get(device, 0) + count
    accelerators = {device: count for device, count in held.items() if device.type not in ("cpu", "meta")}
    if accelerators:
        return max(accelerators, key=lambda device: accelerators[device])
    return max(held, key=lambda device: held[device], default=torch.device("cpu"))


@dataclass
class _Builder:
    """What is known so far of the Program that a joint graph becomes."""

    joint: fx.GraphModule
    forward_outputs: int
    handed_on: frozenset[int]
    device: torch.device
    kind: str
    early: bool
    values: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    value_at: dict[int, int] = field(default_factory=dict)  # value by storage
    value_of: dict[fx.Node, int] = field(default_factory=dict)
    views: set[fx.Node] = field(default_factory=set)
    parts: set[fx.Node] = field(default_factory=set)  # getitems of calls with several results
    written_back: dict[int, fx.Node] = field(default_factory=dict)  # input by its value
    snapshots: dict[int, tuple[int, int]] = field(default_factory=dict)  # (op, copy) by the input's value
    inputs: list[fx.Node] = field(default_factory=list)
    moved: set[int] = field(default_factory=set)  # values that a batch norm's kernel moves
    tokens: dict[object, int] = field(default_factory=dict)  # last token by what it orders
    outputs: set[int] = field(default_factory=set)
    gradients: set[int] = field(default_factory=set)  # those that the caller keeps, and copies of them
    layouts: set[object] = field(default_factory=set)  # of gradients handed over
    first_tokens: list[int] = field(default_factory=list)  # what begins an order in the present phase
    phase: Phase = Phase.FORWARD

    def build(self) -> Captured:
        graph = self.joint.graph
        results = list(graph.find_nodes(op="output")[0].args[0])
        descriptions = _compat.output_descriptions(graph)
        self.forward_results = results[: self.forward_outputs]
        self.backward_results = results[self.forward_outputs :]
        self._inputs(graph, descriptions)
        backward = _backward_calls(graph)
        calls = [node for node in graph.nodes if node.op == "call_function"]
        for node in calls:
            if node not in backward:
                self._call(node)
        self._leave(backward)
        if any(isinstance(node, fx.Node) for node in self.backward_results):
            self.phase = Phase.BACKWARD
            self._enter(graph)
            self._backward([node for node in calls if node in backward])
        held, self.gradients = self.outputs | self.gradients, self.gradients - self.outputs
        values = tuple(
            replace(value, role=Role.OUTPUT) if i in held and value.role is not Role.STATIC else value
            for i, value in enumerate(self.values)
        )
        return Captured(
            device=self.device,
            program=Program(values, tuple(self.ops)),
            joint=self.joint,
            forward_outputs=self.forward_outputs,
            actions=tuple(self.actions),
            value_of=self.value_of,
            views=frozenset(self.views),
            snapshots={self.written_back[v]: op for v, (op, _) in self.snapshots.items()},
            gradients=frozenset(self.gradients),
        )

    def _inputs(self, graph: fx.Graph, descriptions: list[object]) -> None:
        """Inputs and constants are static values; note which of them the step writes to."""
        written = {
            _compat.mutated_input(description)
            for description in descriptions[: self.forward_outputs]
            if _compat.mutated_input(description) is not None
        }
        for node in graph.nodes:
            if node.op == "get_attr" and node.meta.get("val") is not None:
                self._new_values(node, Role.STATIC)
            if node.op != "placeholder" or _is_tangent(node):
                continue
            self._new_values(node, Role.STATIC)
            if node.meta.get("desc") in written and node in self.value_of:
                self.written_back[self.value_of[node]] = node
        for node in graph.nodes:
            if node.op == "call_function":
                for position in hazards.moved_statistics(node):
                    statistic = node.args[position]
                    if statistic.op != "placeholder" or self.value_of[statistic] in self.written_back:
                        raise UnsupportedModel(
                            f"{source.where(node)}: a batch norm moves running statistics that the model also computes "
                            "or writes to itself; Lowtide cannot order the two"
                        )
                    self.moved.add(self.value_of[statistic])

    def _new_values(self, node: fx.Node, role: Role) -> tuple[int, ...]:
        """The values of the storages that a node is the first to live in."""
        made = []
        for identity, (count, device) in storage.sizes(node).items():
            if identity not in self.value_at:
                size = charged(count, self.kind) if device == self.device else 0
                self.value_at[identity] = self._new_value(node.name, size, role)
                made.append(self.value_at[identity])
        self._locate(node)
        return tuple(made)

    def _new_value(self, name: str, size: int, role: Role) -> int:
        self.values.append(Value(name, size, role))
        return len(self.values) - 1

    def _locate(self, node: fx.Node) -> None:
        identities = storage.keys(node)
        if len(identities) == 1:
            self.value_of[node] = self.value_at[identities[0]]

    def _token(self, name: str) -> int:
        return self._new_value(name, 0, self._made_here)

    @property
    def _made_here(self) -> Role:
        return Role.ACTIVATION if self.phase is Phase.FORWARD else Role.GRADIENT

    def _op(
        self,
        name: str,
        action: Action,
        reads: list[int],
        writes: list[int],
        *,
        once: str,
        scratch: int = 0,
        where: str = "",
    ) -> int:
        """Add an op; its number."""
        unique = tuple(dict.fromkeys(reads))
        self.ops.append(Op(name, self.phase, unique, tuple(writes), 0, scratch, once, where))
        self.actions.append(action)
        return len(self.ops) - 1

    def _call(self, node: fx.Node) -> None:
        """Add the op of a call, unless it only views what is there."""
        if node in self.parts:
            return
        if node.meta.get("val") is None:
            once = "it has an effect and no result"
            self._op(str(node.target), Call(node, ()), self._reads(node), [], once=once, where=source.where(node))
            return
        if not any(True for _ in storage.tensors(node)):
            raise UnsupportedModel(
                f"{source.where(node)}: {node.target} makes {type(node.meta.get('val')).__name__}, not a tensor; "
                "Lowtide plans tensors only"
            )
        if storage.is_view(node):
            self.views.add(node)
            self._locate(node)
            return
        several = not isinstance(node.meta["val"], torch.Tensor)
        parts = tuple(user for user in node.users if user.target is operator.getitem)
        self.parts.update(parts)
        used = {identity for part in parts for identity in storage.keys(part)} if several else set(storage.keys(node))
        # Results that nobody takes are scratch; so are results that share a storage, since kernels may not share it.
        counts = Counter(storage.key(tensor) for tensor in storage.tensors(node))
        unused = sum(
            charged(size, self.kind) * (counts[identity] - (identity in used))
            for identity, (size, device) in storage.sizes(node).items()
            if device == self.device
        )
        reads = self._reads(node)
        chains = self._orders(node)
        reads += [token for chain in chains for token in self._last_token(chain)]
        once = hazards.why_once(node, self.kind)
        scratch = unused
        call = Call(node, parts if several else ())
        action: Action = call
        positions = hazards.moved_statistics(node)
        if hazards.needs_grad_mode(node):
            action = RecordedCall(call)
        elif positions:
            action = StatisticsCall(call, positions)
        elif any(chain in self.moved for chain in chains):
            once = once or "reads running statistics that a batch norm moves"
        if hazards.is_random(node):
            if hazards.has_own_generator(node):
                once = once or "draws from a generator of its own"
            elif not once:
                action = self._random(node, call)
                state = self.ops[action.state].writes[0]
                reads.append(state)
                # Run again, it keeps the state that it finds beside the one that it draws from.
                scratch += self.values[state].bytes
        writes = [v for n in (parts if several else (node,)) for v in self._new_values(n, self._made_here)]
        for chain in chains:
            self.tokens[chain] = self._token("order")
            writes.append(self.tokens[chain])
        self._op(str(node.target), action, reads, writes, once=once, scratch=scratch, where=source.where(node))

    def _reads(self, node: fx.Node) -> list[int]:
        """Values a call reads; an input that the step writes to is read through its copy."""
        found = []
        for argument in node.all_input_nodes:
            for identity in storage.keys(argument):
                value = self.value_at[identity]
                if value in self.moved and hazards.ignores_statistics(node):
                    continue
                if value in self.written_back:
                    value = self._snapshot(value)
                found.append(value)
        return found

    def _snapshot(self, value: int) -> int:
        if value not in self.snapshots:
            if self.phase is Phase.BACKWARD:
                raise AssertionError("a written input that forward never reads must be copied before leave")
            original = self.values[value]
            copy = self._new_value(f"{original.name} before", original.bytes, Role.ACTIVATION)
            once = "its source is written to"
            op = self._op("copy", Snapshot(self.written_back[value]), [value], [copy], once=once)
            self.snapshots[value] = (op, copy)
        return self.snapshots[value][1]

    def _orders(self, node: fx.Node) -> list[object]:
        """What the call must keep its place among: a device's generator, running statistics that move."""
        chains: list[object] = []
        if hazards.is_random(node) and not hazards.has_own_generator(node):
            chains.append(_random_device(node))
        if not hazards.ignores_statistics(node):
            for argument in node.all_input_nodes:
                value = self.value_of.get(argument)
                if value in self.moved and value not in chains:
                    chains.append(value)
        return chains

    def _last_token(self, chain: object) -> list[int]:
        return [self.tokens[chain]] if chain in self.tokens else self.first_tokens

    def _random(self, node: fx.Node, call: Call) -> RandomCall:
        """The op that takes the generator's state, and the call that draws from it."""
        device = _random_device(node)
        size = torch.get_rng_state().numel() if device == self.device and self.kind == "cpu" else 0
        state = self._new_value(f"{node.name} state", size, self._made_here)
        taken = self._op(TAKE, TakeState(device), self._last_token(device), [state], once="the generator moves on")
        return RandomCall(call, device, taken)

    def _leave(self, backward: set[fx.Node]) -> None:
        # A written input that only backward reads is copied now, while it still is what it was.
        for node in sorted(backward):
            for value in (v for argument in node.all_input_nodes for v in self._values_of(argument)):
                if value in self.written_back:
                    self._snapshot(value)
        reads = [v for node in _nodes(self.forward_results) for v in self._values_of(node)]
        for description, node in zip(_compat.output_descriptions(self.joint.graph), self.forward_results, strict=False):
            if isinstance(node, fx.Node) and _compat.mutated_input(description) is None:
                self.outputs.update(self._values_of(node))
        reads += [copy for _, copy in self.snapshots.values()] + list(self.tokens.values())
        left = self._token("left")
        self._op(LEAVE, Leave(), reads, [left], once="the outputs are handed out")
        self.left = left

    def _values_of(self, node: fx.Node) -> list[int]:
        return [self.value_at[identity] for identity in storage.keys(node) if identity in self.value_at]

    def _enter(self, graph: fx.Graph) -> None:
        writes: list[int] = []
        tangents = [node for node in graph.find_nodes(op="placeholder") if _is_tangent(node)]
        for node in tangents:
            writes += self._new_values(node, Role.GRADIENT)
        if not _compat.INCOMING_GRADIENTS_ARE_FREED:
            self.outputs.update(writes)
        entered = self._token("entered")
        once = "the gradients of the outputs come in"
        inside = all(tensor.numel() == 1 for node in tangents for tensor in storage.tensors(node))
        scratch = 0 if inside else sum(map(self._loss_scratch, tangents))
        writes.append(self._new_value("loss and its gradient", 2 * charged(8, self.kind), Role.OUTPUT))
        self._op(ENTER, Enter(), [self.left], [*writes, entered], once=once, scratch=scratch)
        self.tokens, self.first_tokens = {}, [entered]

    def _loss_scratch(self, tangent: fx.Node) -> int:
        """What a loss outside the model is taken to need on one output: a mean of squares takes three copies at once
        beside its gradient (cross entropy takes two), in single precision at least; the cast to it takes two more.
        """
        found = 0
        for tensor in storage.tensors(tangent):
            copies = 3 if tensor.element_size() >= 4 else 5
            size = copies * tensor.numel() * max(4, tensor.element_size())
            found += charged(size, self.kind) if tensor.device == self.device else 0
        return found

    def _backward(self, calls: list[fx.Node]) -> None:
        """Add the backward calls, and hand gradients over once enough of them are made and read no more."""
        self.inputs = [n for n in self.joint.graph.find_nodes(op="placeholder") if not _is_tangent(n)]
        places = [i for i, node in enumerate(self.backward_results) if isinstance(node, fx.Node)]
        share = max(sum(_dense_bytes(self.backward_results[place]) for place in places) // PIECES, LEAST_HANDED_OVER)
        done = self._done(calls, places)
        waiting: list[int] = []
        for number, node in enumerate(calls):
            self._call(node)
            waiting += done.get(number, ())
            # The last ones go out at the very end: a piece that handed over nothing would not be run.
            enough = sum(_dense_bytes(self.backward_results[place]) for place in waiting) >= share
            if enough and len(waiting) < len(places):
                self._give(waiting)
                places = [place for place in places if place not in waiting]
                waiting = []
        self._give(places)

    def _done(self, calls: list[fx.Node], places: list[int]) -> dict[int, list[int]]:
        """Gradients of leaves, by the number of the call after which they are made and read no more.

        None where they must all go out at the end.
        """
        if not self.early or any(self.inputs[place] in self.written_back.values() for place in places):
            return {}
        touched: dict[int, int] = {}
        for number, call in enumerate(calls):
            touched |= {identity: number for node in (call, *call.all_input_nodes) for identity in storage.keys(node)}
        found: dict[int, list[int]] = {}
        for place in places:
            if place not in self.handed_on:
                last = max(touched.get(identity, -1) for identity in storage.keys(self.backward_results[place]))
                found.setdefault(last, []).append(place)
        return found

    def _give(self, places: list[int]) -> None:
        """Gradients go out. Those of leaves are held to the end; those that autograd must copy are copied."""
        reads = list(self.first_tokens)
        writes: list[int] = []
        for place in places:
            node, leaf = self.backward_results[place], self.inputs[place]
            values = self._values_of(node)
            reads += values
            if place in self.handed_on:
                continue
            if _layout(node) in self.layouts or not _can_be_stolen(node, leaf):
                size = charged(_dense_bytes(leaf), self.kind)
                writes.append(self._new_value(f"{leaf.name} gradient", size, Role.OUTPUT))
                self.gradients.add(writes[-1])
            else:
                self.gradients.update(values)
            self.layouts.add(_layout(node))
        self._op(GIVE, Give(tuple(places)), reads, writes, once="the caller takes them")


def _nodes(results: list[object]) -> list[fx.Node]:
    return [node for node in results if isinstance(node, fx.Node)]


def _is_tangent(node: fx.Node) -> bool:
    return "tangents" in str(node.target)


def _random_device(node: fx.Node) -> torch.device:
    return next(storage.tensors(node)).device


def _backward_calls(graph: fx.Graph) -> set[fx.Node]:
    """Calls that the backward pass makes: those marked so, and all that depend on one or on a gradient coming in."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        marked = node.meta.get("partitioner_tag") == "is_backward"
        if marked or any(_is_tangent(n) or n in found for n in node.all_input_nodes):
            found.add(node)
    return found


def _can_be_stolen(node: fx.Node, leaf: fx.Node) -> bool:
    """Whether autograd keeps this very tensor as the leaf's gradient, rather than a copy in the leaf's layout."""
    gradient, parameter = next(storage.tensors(node)), next(storage.tensors(leaf))
    if torch.ops.aten.is_non_overlapping_and_dense(parameter):
        wanted = parameter.stride()
        return all(size == 1 or a == b for size, a, b in zip(parameter.shape, gradient.stride(), wanted, strict=True))
    return gradient.is_contiguous()


def _layout(node: fx.Node) -> object:
    """What two nodes share when they may be one tensor."""
    tensor = next(storage.tensors(node))
    return storage.key(tensor), tensor.storage_offset(), tensor.shape, tensor.stride()


def _dense_bytes(node: fx.Node) -> int:
    tensor = next(storage.tensors(node))
    return tensor.numel() * tensor.element_size()
