"""A model of what Inductor fuses: the calls of one graph, grouped into the kernels that it will make of them.

What is assumed, in the words of Inductor's scheduler:

- A view costs nothing and holds nothing; so does what is made from no tensor at all (a constant, a range).
- Matrix products, convolutions, attention and whatever else is neither pointwise nor a reduction run as they are: a
  kernel of their own, whose results are held.
- Pointwise calls join the kernel of what they read where both go over the same number of elements. A reduction joins
  the kernel of what it reduces, and what goes over its result, or over what it reduced, joins it in turn; a kernel has
  one shape of reduction at most, since rows and columns are reduced by different loops.
- Kernels that one call would join become one where neither waits for the other. Nothing joins where a kernel would
  then wait for itself.
- Of what a kernel makes, only what another kernel reads or what the graph returns is ever held; the rest stays in
  registers.

Where this is wrong (Inductor looks at strides, at the sizes of kernels, and at what shares its reads) it shows in the
code that Inductor writes, which `code.py` reads: plans are corrected by that, not by this.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import torch
from torch import fx

from lowtide._compat import OpOverload

# Pointwise, though PyTorch does not tag them so: each element of the result is made by itself, from few reads.
_POINTWISE = {
    "aten::_to_copy",
    "aten::constant_pad_nd",
    "aten::copy",
    "aten::embedding",
    "aten::flip",
    "aten::full_like",
    "aten::gather",
    "aten::index",
    "aten::repeat",
    "aten::select_scatter",
    "aten::slice_scatter",
    "prims::inductor_random",
    "prims::inductor_randint",
}
_REDUCTIONS = {
    "aten::all",
    "aten::amax",
    "aten::amin",
    "aten::any",
    "aten::argmax",
    "aten::argmin",
    "aten::max",
    "aten::mean",
    "aten::min",
    "aten::prod",
    "aten::sum",
    "aten::var",
    "aten::var_mean",
    "prims::prepare_softmax_online",
    "prims::xor_sum",
}
_VIEWS = {"aten::_unsafe_view", "aten::reshape", "prims::inductor_lookup_seed"}
_MADE_OF_NOTHING = {"aten::arange", "aten::full", "aten::scalar_tensor", "aten::zeros", "aten::ones", "prims::iota"}


@dataclass(frozen=True, eq=False)
class Kernel:
    """Calls that run as one.

    nodes     the calls, in the graph's order, the parts of those with several results among them
    results   those of them that are held, since something outside reads them
    reads     nodes outside whose results it reads, views resolved: inputs of the graph, or results of kernels
    fused     whether Inductor writes it; otherwise it is one call of a library
    """

    nodes: tuple[fx.Node, ...]
    results: tuple[fx.Node, ...]
    reads: tuple[fx.Node, ...]
    fused: bool


@dataclass
class _Group:
    """A kernel being gathered.

    size        elements that it goes over
    reduced     elements of the results of its reductions; 0 where it has none
    ancestors   the groups that it waits for
    """

    nodes: list[fx.Node]
    size: int
    reduced: int
    fused: bool
    ancestors: set[int] = field(default_factory=set)


def kernels(graph: fx.Graph, alone: Collection[fx.Node] = ()) -> list[Kernel]:
    """The kernels of a forward or a backward graph, in an order in which each comes after what it reads.

    Calls in `alone` are kept apart from all others, so that whether they can run again is no matter of others.
    """
    return _Grouping(graph, frozenset(alone)).kernels()


def base(node: fx.Node) -> Iterator[fx.Node]:
    """What a node is a view of, through any number of views: inputs and calls that make something."""
    if is_view(node):
        for argument in node.all_input_nodes:
            yield from base(argument)
    elif node.op in ("placeholder", "get_attr") or not is_free(node):
        yield node


def is_view(node: fx.Node) -> bool:
    """Whether a call makes no memory of its own, in Inductor's eyes; a part of what a view made is one too."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return is_view(_first(node))
    if not isinstance(node.target, OpOverload):
        return False
    schema = node.target._schema
    if schema.name in _VIEWS:
        return True
    results = schema.returns
    return not schema.is_mutable and bool(results) and all(result.alias_info is not None for result in results)


def is_free(node: fx.Node) -> bool:
    """Whether a call makes its result from nothing, so that it is written into whatever reads it."""
    return (
        node.op == "call_function"
        and isinstance(node.target, OpOverload)
        and node.target._schema.name in _MADE_OF_NOTHING
        and not node.all_input_nodes
    )


class _Grouping:
    def __init__(self, graph: fx.Graph, alone: frozenset[fx.Node]) -> None:
        self.graph = graph
        self.alone = alone
        self.groups: dict[int, _Group] = {}
        self.group_of: dict[fx.Node, int] = {}
        self.output = graph.find_nodes(op="output")[0]

    def kernels(self) -> list[Kernel]:
        for node in self.graph.nodes:
            if node.op == "call_function" and not is_view(node) and not is_free(node):
                self._add(node)
        place = {node: number for number, node in enumerate(self.graph.nodes)}
        made = [self._kernel(group, place) for group in self._in_order(place)]
        return [kernel for kernel in made if kernel.nodes]

    def _add(self, node: fx.Node) -> None:
        if node.target is operator.getitem and _first(node) in self.group_of:
            self._join(node, self.group_of[_first(node)])
            return
        before = {self.group_of[source] for source in self._sources(node) if source in self.group_of}
        size, reduced = _sizes(node) if node not in self.alone else (None, 0)
        if size is not None:
            fitting = sorted(number for number in before if self._takes(number, size, reduced))
            chosen: int | None = None
            for number in reversed(fitting):
                if chosen is None and not any(number in self.groups[other].ancestors for other in before - {number}):
                    chosen = number
                elif chosen is not None and self._independent(chosen, number):
                    chosen = self._merge(chosen, number)
            if chosen is not None:
                self.groups[chosen].reduced = self.groups[chosen].reduced or reduced
                self._join(node, chosen)
                self._wait(chosen, {self.group_of[source] for source in self._sources(node) if source in self.group_of})
                return
        number = len(self.group_of)
        while number in self.groups:
            number += 1
        self.groups[number] = _Group([], size or 0, reduced, size is not None)
        self._join(node, number)
        self._wait(number, before)

    def _sources(self, node: fx.Node) -> Iterator[fx.Node]:
        for argument in node.all_input_nodes:
            yield from base(argument)

    def _takes(self, number: int, size: int, reduced: int) -> bool:
        group = self.groups[number]
        if not group.fused or (reduced and group.reduced and reduced != group.reduced):
            return False
        if reduced and not group.reduced:
            return size == group.size
        return size in (group.size, group.reduced)

    def _independent(self, one: int, other: int) -> bool:
        a, b = self.groups[one], self.groups[other]
        alike = not a.reduced or not b.reduced or a.reduced == b.reduced
        return alike and a.size == b.size and one not in b.ancestors and other not in a.ancestors

    def _join(self, node: fx.Node, number: int) -> None:
        self.groups[number].nodes.append(node)
        self.group_of[node] = number

    def _wait(self, number: int, before: set[int]) -> None:
        """Note that a group waits for others, and whatever waits for it does too."""
        added = before | {a for other in before for a in self.groups[other].ancestors}
        added.discard(number)
        if added <= self.groups[number].ancestors:
            return
        self.groups[number].ancestors |= added
        if len(self.groups[number].nodes) == 1:
            return  # It is new: nothing waits for it yet.
        for group in self.groups.values():
            if number in group.ancestors:
                group.ancestors |= added

    def _merge(self, one: int, other: int) -> int:
        """Two groups that do not wait for each other become the first of them."""
        gone = self.groups.pop(other)
        kept = self.groups[one]
        kept.nodes += gone.nodes
        kept.reduced = kept.reduced or gone.reduced
        kept.ancestors |= gone.ancestors
        for node in gone.nodes:
            self.group_of[node] = one
        for group in self.groups.values():
            if other in group.ancestors:
                group.ancestors = (group.ancestors - {other}) | {one} | kept.ancestors
            elif one in group.ancestors:
                group.ancestors |= kept.ancestors
        return one

    def _in_order(self, place: dict[fx.Node, int]) -> list[_Group]:
        """The groups, each after those it waits for, otherwise as the graph has them."""
        waiting = sorted(self.groups.items(), key=lambda item: min(place[node] for node in item[1].nodes))
        done: set[int] = set()
        ordered: list[_Group] = []

        def visit(number: int) -> None:
            if number in done:
                return
            done.add(number)
            for other in sorted(self.groups[number].ancestors):
                visit(other)
            ordered.append(self.groups[number])

        for number, _ in waiting:
            visit(number)
        return ordered

    def _kernel(self, group: _Group, place: dict[fx.Node, int]) -> Kernel:
        nodes = sorted(group.nodes, key=place.__getitem__)
        mine = set(nodes)
        reads = dict.fromkeys(s for node in nodes for s in self._sources(node) if s not in mine)
        results = [node for node in nodes if _is_tensor(node) and self._leaves(node, mine)]
        return Kernel(tuple(nodes), tuple(results), tuple(reads), group.fused)

    def _leaves(self, node: fx.Node, mine: set[fx.Node]) -> bool:
        """Whether anything outside reads a node, or a view of it."""
        for user in node.users:
            if user is self.output:
                return True
            if is_view(user):
                if self._leaves(user, mine):
                    return True
            elif user not in mine:
                return True
        return False


def _sizes(node: fx.Node) -> tuple[int | None, int]:
    """Elements that a call goes over, and of its results where it reduces; None for what is not fused."""
    target, value = node.target, node.meta.get("val")
    if not isinstance(target, OpOverload) or target._schema.is_mutable:
        return None, 0
    name = target._schema.name
    if name in _REDUCTIONS:
        read = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)]
        result = value[0] if isinstance(value, (tuple, list)) else value
        return (max(n.meta["val"].numel() for n in read), result.numel()) if read else (None, 0)
    if torch.Tag.pointwise in target.tags or name in _POINTWISE:
        return (value.numel(), 0) if isinstance(value, torch.Tensor) else (None, 0)
    return None, 0


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _first(node: fx.Node) -> fx.Node:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    return source
