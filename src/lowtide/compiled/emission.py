"""From a sequence of runs to the two modules that Inductor compiles.

The sequence of plain `torch.compile` gives back its own two modules. In any other, every run copies its kernel's calls,
in order, on the newest copies of what they read. Inductor gets forward and backward after its passes that would take
equal calls for one, so that what is run again stays.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from torch import fx

from lowtide import _compat
from lowtide.compiled.kernels import base, is_free, is_view
from lowtide.compiled.partitioned import Partitioned, is_tangent


def emit(step: Partitioned, runs: Sequence[int]) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The forward and the backward module of a valid sequence, in AOTAutograd's calling convention."""
    if tuple(runs) == tuple(range(len(step.program.ops))):
        return step.forward, step.backward
    cut = list(runs).index(step.entered)
    forward = _Writer(step, step.forward.graph)
    for node in step.forward.graph.find_nodes(op="placeholder"):
        forward.place(node)
    for run in runs[:cut]:
        forward.run(run)
    backward = _Writer(step, step.backward.graph, source=forward)
    for node in step.backward.graph.find_nodes(op="placeholder"):
        if is_tangent(node):
            backward.place(node)
    for place, run in enumerate(runs[cut:]):
        backward.run(run, place)
    results, given_back = _results(step.forward.graph), _results(step.backward.graph)
    gradients = [backward.result(node) for node in given_back]
    backward.drop_dead(gradients)
    returned = [forward.result(node) for node in results[: step.outputs]]
    saved = backward.received()
    descriptions = _compat.output_descriptions(step.forward.graph)[: step.outputs]
    descriptions += _compat.saved_descriptions(saved)
    return (
        forward.module(step.forward, returned + saved, descriptions),
        backward.module(step.backward, gradients, _compat.output_descriptions(step.backward.graph)),
    )


def _results(graph: fx.Graph) -> list[Any]:
    return list(graph.find_nodes(op="output")[0].args[0])


class _Writer:
    """One module being written.

    copies   newest copy of each node that was made here; nodes of forward's graph and of backward's are different ones
    taken    what this module takes over from `source`: the placeholder here, by the node of forward's graph
    saved    the node in the source module, by the placeholder here
    plain    names that plain torch.compile saves for backward
    """

    def __init__(self, step: Partitioned, own: fx.Graph, source: _Writer | None = None) -> None:
        self.step = step
        self.own = own
        self.source = source
        self.graph = fx.Graph()
        self.copies: dict[fx.Node, fx.Node] = {}
        self.taken: dict[fx.Node, fx.Node] = {}
        self.saved: dict[fx.Node, fx.Node] = {}
        self.first: fx.Node | None = None
        self.named = {node.name: node for node in step.forward.graph.nodes}
        self.plain = {str(node.target) for node in own.find_nodes(op="placeholder")} if source is not None else set()

    def place(self, node: fx.Node) -> None:
        """A placeholder for an input that the module keeps."""
        copy = self.graph.node_copy(node)
        copy.target = copy.name
        self.copies[node] = copy
        self.first = self.first or copy

    def run(self, number: int, place: int | None = None) -> None:
        """Write one run of a kernel, the one at this place of backward."""
        kernel = self.step.kernels[number]
        if kernel is None:
            return
        mine = set(kernel.nodes)
        fresh: dict[fx.Node, fx.Node] = {}

        def argument(node: fx.Node) -> fx.Node:
            if node not in fresh and is_view(node) and not mine.isdisjoint(base(node)):
                fresh[node] = self.graph.node_copy(node, argument)  # A view of what this run makes.
            return fresh[node] if node in fresh else self._tensor(node)

        for node in kernel.nodes:
            fresh[node] = self.graph.node_copy(node, argument)
            if place is not None:
                fresh[node].meta[_compat.RUN] = place, number < self.step.entered
        for node in kernel.nodes:
            self._forget_views(node)
        self.copies.update({node: fresh[node] for node in kernel.nodes})

    def _forget_views(self, node: fx.Node) -> None:
        """Views of an older copy of what a kernel makes are not views of the new one."""
        for user in node.users:
            if is_view(user):
                self.copies.pop(user, None)
                self.taken.pop(user, None)
                self._forget_views(user)

    def _tensor(self, node: fx.Node) -> fx.Node:
        """The newest copy of a node in this module."""
        if node in self.copies:
            return self.copies[node]
        if node.op == "placeholder" and self.source is not None and node.graph is self.own:
            return self._tensor(self.named[str(node.target)])
        if node.op == "call_function" and is_free(node):
            return self.graph.node_copy(node)
        if node.op == "get_attr" or (node.op == "call_function" and is_view(node) and self._views_here(node)):
            self.copies[node] = self.graph.node_copy(node, self._tensor)
            return self.copies[node]
        return self._take_over(node)

    def _views_here(self, node: fx.Node) -> bool:
        """Whether to make a view here. A view that plain torch.compile saves is taken over as it is, unless what it
        views was made anew here.
        """
        if self.source is None or node.graph is self.own or node.name not in self.plain:
            return True
        return any(source in self.copies for source in base(node))

    def _take_over(self, node: fx.Node) -> fx.Node:
        """A placeholder for what the forward module leaves behind."""
        if node in self.taken:
            return self.taken[node]
        assert self.source is not None, f"{node} is read before it is made"
        theirs = self.source._tensor(node)
        if self.first is None:
            mine = self.graph.placeholder(theirs.name)
        else:
            with self.graph.inserting_before(self.first):
                mine = self.graph.placeholder(theirs.name)
        mine.target = mine.name
        mine.meta = dict(theirs.meta)
        self.saved[mine] = theirs
        self.taken[node] = mine
        return mine

    def received(self) -> list[fx.Node]:
        """The source's nodes that this module takes over, in the order of its placeholders: those whose versions
        autograd is not to check come last.
        """
        mine = [node for node in self.graph.find_nodes(op="placeholder") if node in self.saved]
        for node in mine:
            if _compat.is_unchecked(node) and self.first is not None:
                self.first.prepend(node)
        return [self.saved[node] for node in self.graph.find_nodes(op="placeholder") if node in self.saved]

    def result(self, node: Any) -> Any:
        """The newest copy of an output; what is no node stays as it is."""
        return self._tensor(node) if isinstance(node, fx.Node) else node

    def drop_dead(self, results: Sequence[Any]) -> None:
        """Leave out calls of a kernel that was run again for others of its results, and inputs that nobody reads."""
        needed = {node for node in results if isinstance(node, fx.Node)}
        for node in reversed(list(self.graph.nodes)):
            if node in needed or node.op == "placeholder":
                continue
            if not node.users and not _has_effect(node):
                self.graph.erase_node(node)
        for node in list(self.graph.nodes):
            if node in self.saved and not node.users and node not in needed:
                del self.saved[node]
                self.graph.erase_node(node)

    def module(self, like: fx.GraphModule, results: list[Any], descriptions: list[Any]) -> fx.GraphModule:
        """The module that returns these."""
        own = self.own.find_nodes(op="output")[0]
        output = self.graph.output(tuple(results))
        output.meta.update({**own.meta, "desc": descriptions})
        self.graph.lint()
        made = fx.GraphModule(like, self.graph)
        made.meta = dict(like.meta)
        return made


def _has_effect(node: fx.Node) -> bool:
    target = node.target
    return target is not operator.getitem and isinstance(target, _compat.OpOverload) and target._schema.is_mutable
