"""From the two graphs that plain `torch.compile` would compile to a Program whose ops are kernels.

PyTorch's own partitioner has cut the joint graph in two, pointwise calls that it would rather make again in backward
among them. Those two graphs, carried out as they are, are plain `torch.compile`, and so are the Program's own runs. A
plan that needs less memory runs kernels of the forward graph again within the backward graph.

Inputs that the step writes to have been seen to before (`written.py`). Random numbers come from seeds, which one kernel
that runs once takes from the generator; whatever draws from them draws the same numbers again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import torch
from torch import fx

from lowtide import _compat
from lowtide.allocator import charged
from lowtide.capture import hazards, source
from lowtide.capture.joint import device_of
from lowtide.capture.step import ENTER, LEAVE
from lowtide.captured import GIVE
from lowtide.compiled.kernels import Kernel, base, is_view, kernels
from lowtide.compiled.written import written
from lowtide.errors import UnsupportedModel
from lowtide.program import Op, Phase, Program, Role, Value

# Draws from the seeds that it is given, and from nothing else.
_SEEDED = {"prims::inductor_lookup_seed", "prims::inductor_random", "prims::inductor_randint"}


@dataclass(frozen=True, eq=False)
class Partitioned:
    """One graph of a training step, as Inductor gets it.

    device     whose memory the program counts
    program    what planners see: its ops are the kernels of both graphs
    forward    plain torch.compile's forward module
    backward   its backward module
    outputs    how many of forward's outputs are the caller's or written back; those after are saved
    kernels    what each op runs; None for leave, enter and the handing over of gradients
    entered    the op at which backward begins
    kind       of the device, whose allocator counts
    handed_on  positions of inputs that something before the graph made, whose gradients are handed on
    costs      where the program's nanoseconds come from, in words; empty where it has none
    """

    device: torch.device
    program: Program
    forward: fx.GraphModule
    backward: fx.GraphModule
    outputs: int
    kernels: tuple[Kernel | None, ...]
    entered: int
    kind: str
    handed_on: frozenset[int]
    costs: str = ""

    @property
    def accumulating(self) -> Program:
        """The Program where gradients are added to those that are there: the same, for all go out at the end."""
        return self.program


def partitioned(
    forward: fx.GraphModule, backward: fx.GraphModule, outputs: int, handed_on: Collection[int] = ()
) -> Partitioned:
    """The Program of two graphs; `outputs` and `handed_on` as in `capture.joint.capture`."""
    return _Builder(forward, backward, outputs, frozenset(handed_on)).build()


def reads_of_written(graph: fx.Graph, outputs: int) -> set[fx.Node]:
    """Calls of a forward graph that read an input which the step writes to: run again, they would find it changed."""
    inputs = set(written(graph, outputs))
    return {
        node
        for node in graph.nodes
        if node.op == "call_function"
        and not is_view(node)
        and any(source in inputs for argument in node.all_input_nodes for source in base(argument))
    }


def is_tangent(node: fx.Node) -> bool:
    """Whether an input of the backward graph is the gradient of an output."""
    return node.op == "placeholder" and "tangents" in str(node.target)


class _Builder:
    def __init__(
        self, forward: fx.GraphModule, backward: fx.GraphModule, outputs: int, handed_on: frozenset[int]
    ) -> None:
        self.forward, self.backward, self.outputs, self.handed_on = forward, backward, outputs, handed_on
        self.device = device_of(forward.graph)
        self.kind = "cpu" if self.device.type == "meta" else self.device.type
        self.values: list[Value] = []
        self.ops: list[Op] = []
        self.made: list[Kernel | None] = []
        self.value_of: dict[fx.Node, int] = {}
        self.returned: set[int] = set()
        self.bound: set[fx.Node] = set()

    def build(self) -> Partitioned:
        first, second = self.forward.graph, self.backward.graph
        _refuse_symbols(first, second)
        for node in first.nodes:
            if node.op in ("placeholder", "get_attr"):
                self._value(node, Role.STATIC)
        self.bound = reads_of_written(first, self.outputs)
        for kernel in kernels(first, self.bound):
            self._kernel(kernel, Phase.FORWARD, [])
        results = _results(first)
        left = self._token("left")
        given = [v for node in _nodes(results[: self.outputs]) for v in self._values(node)]
        self._outputs(_compat.output_descriptions(first), results[: self.outputs])
        self._op(LEAVE, Phase.FORWARD, given, [left], "the outputs are handed out")
        self._take_saved(second)
        entered = len(self.ops)
        begun = self._enter(second, left)
        for kernel in kernels(second):
            self._kernel(kernel, Phase.BACKWARD, [begun])
        self._give(_results(second), list(first.find_nodes(op="placeholder")), begun)
        values = tuple(
            replace(value, role=Role.OUTPUT) if i in self.returned and value.role is not Role.STATIC else value
            for i, value in enumerate(self.values)
        )
        return Partitioned(
            device=self.device,
            program=Program(values, tuple(self.ops)),
            forward=self.forward,
            backward=self.backward,
            outputs=self.outputs,
            kernels=tuple(self.made),
            entered=entered,
            kind=self.kind,
            handed_on=self.handed_on,
        )

    def _value(self, node: fx.Node, role: Role) -> int:
        self.values.append(Value(node.name, self._bytes(node), role))
        self.value_of[node] = len(self.values) - 1
        return len(self.values) - 1

    def _bytes(self, node: fx.Node) -> int:
        tensor = node.meta.get("val")
        if not isinstance(tensor, torch.Tensor) or tensor.device.type != self.device.type:
            return 0
        return charged(tensor.numel() * tensor.element_size(), self.kind)

    def _token(self, name: str, size: int = 0, role: Role = Role.ACTIVATION) -> int:
        self.values.append(Value(name, size, role))
        return len(self.values) - 1

    def _op(
        self, name: str, phase: Phase, reads: list[int], writes: list[int], once: str, scratch: int = 0, where: str = ""
    ) -> None:
        self.ops.append(Op(name, phase, tuple(dict.fromkeys(reads)), tuple(writes), 0, scratch, once, where))
        self.made.append(None)

    def _kernel(self, kernel: Kernel, phase: Phase, after: list[int]) -> None:
        reads = [v for node in kernel.reads for v in self._values(node)] + after
        role = Role.ACTIVATION if phase is Phase.FORWARD else Role.GRADIENT
        writes = [self._value(node, role) for node in kernel.results if not _is_written(node)]
        for node in kernel.results:
            if _is_written(node):
                self.value_of[node] = next(v for n in base(_argument(node)) for v in self._values(n))
        once = next(filter(None, (_why_once(node, self.kind) for node in kernel.nodes)), "")
        if not self.bound.isdisjoint(kernel.nodes):
            once = "it reads an input that the step writes to"
        where = next(filter(None, map(source.where, kernel.nodes)), "")
        name = " ".join(dict.fromkeys(_name(node) for node in kernel.nodes if not _is_part(node)))
        self._op(name, phase, reads, writes, once, where=where)
        self.made[-1] = kernel

    def _values(self, node: fx.Node) -> list[int]:
        """Values that a node is, or is a view of."""
        return [self.value_of[source] for source in base(node) if source in self.value_of]

    def _outputs(self, descriptions: list[object], results: list[object]) -> None:
        for description, node in zip(descriptions, results, strict=False):
            if isinstance(node, fx.Node) and _compat.mutated_input(description) is None:
                self.returned.update(self._values(node))

    def _take_saved(self, second: fx.Graph) -> None:
        """What forward leaves to backward goes by the same name there."""
        named = {node.name: node for node in self.forward.graph.nodes}
        for node in second.find_nodes(op="placeholder"):
            if not is_tangent(node):
                theirs = named.get(str(node.target))
                if theirs is None:
                    raise UnsupportedModel(
                        f"backward takes {node.target}, which forward does not make; Lowtide plans tensors only"
                    )
                values = self._values(theirs)
                if values:
                    self.value_of[node] = values[0]

    def _enter(self, second: fx.Graph, left: int) -> int:
        tangents = [node for node in second.find_nodes(op="placeholder") if is_tangent(node)]
        writes = [self._value(node, Role.GRADIENT) for node in tangents]
        if not _compat.INCOMING_GRADIENTS_ARE_FREED:
            self.returned.update(writes)
        begun = self._token("entered", role=Role.GRADIENT)
        loss = self._token("loss and its gradient", 2 * charged(8, self.kind), Role.OUTPUT)
        scratch = 0
        if not all(_is_single(node) for node in tangents):
            scratch = sum(map(self._loss_scratch, tangents))
        once = "the gradients of the outputs come in"
        self._op(ENTER, Phase.BACKWARD, [left], [*writes, loss, begun], once, scratch)
        return begun

    def _loss_scratch(self, tangent: fx.Node) -> int:
        """What a loss outside the model is taken to need: as in `capture.joint`."""
        tensor = tangent.meta["val"]
        copies = 3 if tensor.element_size() >= 4 else 5
        size = copies * tensor.numel() * max(4, tensor.element_size())
        return charged(size, self.kind) if tensor.device.type == self.device.type else 0

    def _give(self, results: list[object], inputs: list[fx.Node], begun: int) -> None:
        reads = [begun]
        for position, node in enumerate(results):
            if not isinstance(node, fx.Node):
                continue
            values = self._values(node)
            reads += values
            if position not in self.handed_on:
                self.returned.update(values)
        self._op(GIVE, Phase.BACKWARD, reads, [], "the caller takes them")


def _why_once(node: fx.Node, kind: str) -> str:
    if isinstance(node.target, _compat.OpOverload) and node.target._schema.name in _SEEDED:
        return ""
    if hazards.is_random(node):
        return "it draws from the generator"
    return hazards.why_once(node, kind)


def _refuse_symbols(*graphs: fx.Graph) -> None:
    for graph in graphs:
        for node in graph.nodes:
            found = node.meta.get("val")
            if isinstance(found, (torch.SymInt, torch.SymFloat, torch.SymBool)) or (
                isinstance(found, torch.Tensor) and any(isinstance(size, torch.SymInt) for size in found.shape)
            ):
                raise UnsupportedModel(
                    f"{source.where(node) or node.name}: a size that is not known before the step runs. Under Inductor "
                    "every shape is planned and compiled by itself: call torch.compile with dynamic=False, and take "
                    "sizes that depend on data (nonzero, masked_select, .item()) out of the model."
                )


def _is_written(node: fx.Node) -> bool:
    return isinstance(node.target, _compat.OpOverload) and node.target._schema.is_mutable


def _argument(node: fx.Node) -> fx.Node:
    return node.all_input_nodes[0]


def _is_part(node: fx.Node) -> bool:
    return not isinstance(node.target, _compat.OpOverload)


def _name(node: fx.Node) -> str:
    return str(node.target).removesuffix(".default")


def _results(graph: fx.Graph) -> list[object]:
    return list(graph.find_nodes(op="output")[0].args[0])


def _nodes(results: list[object]) -> Iterator[fx.Node]:
    return (node for node in results if isinstance(node, fx.Node))


def _is_single(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor) and node.meta["val"].numel() == 1
