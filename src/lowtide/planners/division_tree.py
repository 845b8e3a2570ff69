"""Feng and Huang's division tree of a Dag with one source and one target."""

from __future__ import annotations

from dataclasses import dataclass

from lowtide.errors import InvalidProblem
from lowtide.planners.dag import Dag


@dataclass(frozen=True, slots=True)
class Linear:
    """A region that every way from its entry to its exit runs through the values `cuts`, in this order.

    bytes   of all values in the region, entry and exit not counted
    cuts    at least one
    gaps    numbers of the regions between entry and first cut, between cuts, and between last cut and exit;
            several in one gap are the paper's branch node
    """

    bytes: int
    cuts: tuple[int, ...]
    gaps: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Complicate:
    """A region without a cut whose proper subregions are those of `inside`, and no others.

    bytes    of all values in the region, entry and exit not counted
    stored   the values in no region of `inside`
    inside   numbers of the largest proper subregions; they do not touch
    """

    bytes: int
    stored: tuple[int, ...]
    inside: tuple[int, ...]


Region = Linear | Complicate


@dataclass(frozen=True, slots=True)
class DivisionTree:
    """All regions; the parts of a region have higher numbers than it.

    A region is a weakly connected set of values, without source and target, that receives edges from one value outside
    it, its entry, and sends edges to one value outside it, its exit. Where a linear region has several cuts, what lies
    strictly between any two of entry, cuts and exit is a region too; these have no numbers of their own.

    regions   see above
    top       numbers of the regions from source to target
    """

    regions: tuple[Region, ...]
    top: tuple[int, ...]


def division_tree(dag: Dag) -> DivisionTree:
    """The regions of `dag`; InvalidProblem unless it has one source and one target.

    A region is a component that is left when its entry i and exit j are taken out of the graph, so regions are those
    pieces of the pairs that separate it, and the tree is that of the triconnected components of the graph with an edge
    from target to source: linear are its cycles, branch its bonds, complicate the rest. Two regions that touch without
    one being inside the other lie between cuts of one linear region. Time O(n (n + m)): a search of the region for
    each value stored in a complicate one.
    """
    sources = [v for v in range(len(dag)) if not dag.before[v]]
    targets = [v for v in range(len(dag)) if not dag.after[v]]
    for ends, name in ((sources, "sources"), (targets, "targets")):
        if len(ends) != 1:
            some = ", ".join(map(str, ends[:8])) + (", ..." if len(ends) > 8 else "")
            raise InvalidProblem(
                f"edges: must leave one source and one target, found {len(ends)} {name}: {some}", "edges"
            )
    source, target = sources[0], targets[0]
    builder = _Builder(dag)
    inside = set(range(len(dag))) - {source, target}
    top = [builder.add(source, target, part) for part in builder.components(inside)]
    # Parts are added behind their region, so this reaches all of them, however deep they lie, without recursion.
    regions: list[Region] = []
    for number, (entry, exit_, values) in enumerate(builder.waiting):
        assert number == len(regions)
        regions.append(builder.divide(entry, exit_, values))
    return DivisionTree(tuple(regions), tuple(top))


class _Builder:
    def __init__(self, dag: Dag) -> None:
        self.dag = dag
        self.near = tuple((*b, *a) for b, a in zip(dag.before, dag.after))
        self.waiting: list[tuple[int, int, list[int]]] = []

    def add(self, entry: int, exit_: int, values: list[int]) -> int:
        """Number a region that is still to be divided."""
        self.waiting.append((entry, exit_, values))
        return len(self.waiting) - 1

    def components(self, values: set[int]) -> list[list[int]]:
        """The weakly connected parts of `values`, each sorted, in order of their first value."""
        left = set(values)
        parts = []
        for first in sorted(values):
            if first not in left:
                continue
            left.remove(first)
            part = [first]
            for v in part:
                for w in self.near[v]:
                    if w in left:
                        left.remove(w)
                        part.append(w)
            parts.append(sorted(part))
        return parts

    def divide(self, entry: int, exit_: int, values: list[int]) -> Region:
        """The region `values` from entry to exit, its parts added to what is still to be divided."""
        size = sum(self.dag.bytes[v] for v in values)
        cuts = self.cuts(entry, exit_, values)
        if cuts:
            ends = [entry, *cuts, exit_]
            gaps: list[list[int]] = [[] for _ in range(len(cuts) + 1)]
            place = 0
            for part in self.components(set(values) - set(cuts)):
                # Parts come in order of their first values, and cuts part them in index order.
                while place < len(cuts) and part[0] > cuts[place]:
                    place += 1
                gaps[place].append(self.add(ends[place], ends[place + 1], part))
            return Linear(size, tuple(cuts), tuple(map(tuple, gaps)))
        inside = [self.add(*piece) for piece in self.largest_inside(entry, exit_, values)]
        covered = {v for number in inside for v in self.waiting[number][2]}
        return Complicate(size, tuple(v for v in values if v not in covered), tuple(inside))

    def cuts(self, entry: int, exit_: int, values: list[int]) -> list[int]:
        """The values that every way from entry to exit runs through: no edge of the region leads past them."""
        members = set(values)
        reach = max(s for s in self.dag.after[entry] if s in members)
        found = []
        for v in values:
            if reach <= v:
                found.append(v)
            reach = max(reach, *self.dag.after[v])
        return found

    def largest_inside(self, entry: int, exit_: int, values: list[int]) -> list[tuple[int, int, list[int]]]:
        """The largest proper subregions of a region without cuts, with their entries and exits.

        With the entry of a subregion taken out, its exit is a cut vertex of what is left (entry and exit of the whole
        joined by an edge), and the subregion hangs on it. The largest do not hold each other's entries, so, in index
        order, what lies in one already found need not be tried: one search for each value that is in none.
        """
        graph = {v: [w for w in self.near[v] if w in members] for members in [{*values, entry, exit_}] for v in members}
        for a, b in ((entry, exit_), (exit_, entry)):
            graph[a] = [b, *(w for w in graph[a] if w != b)]
        covered: set[int] = set()
        found = []
        for out in (entry, *values):
            if out in covered:
                continue
            root = exit_ if out == entry else entry
            for piece in _hanging(graph, out, root, {entry, exit_}, len(values)):
                if piece[0] not in covered:
                    covered.update(piece)
                    around = {w for v in piece for w in self.near[v]}.difference(piece)
                    first, last = sorted(around)
                    found.append((first, last, sorted(piece)))
        return found


def _hanging(graph: dict[int, list[int]], out: int, root: int, ends: set[int], below: int) -> list[list[int]]:
    """The largest parts, of fewer than `below` values and free of `ends`, of the graph without `out` that hang on one
    vertex away from the root.

    Depth-first search with low points; a subtree that reaches no higher than the vertex above it hangs on that vertex.
    """
    number = {root: 0, out: -1}
    preorder = [root]
    low = {root: 0}
    up: dict[int, int] = {}
    stack = [(root, iter(graph[root]))]
    while stack:
        v, rest = stack[-1]
        for w in rest:
            if w == out:
                continue
            if w not in number:
                number[w] = low[w] = len(preorder)
                preorder.append(w)
                up[w] = v
                stack.append((w, iter(graph[w])))
                break
            if w != up.get(v):
                low[v] = min(low[v], number[w])
        else:
            stack.pop()
            if stack:
                above = stack[-1][0]
                low[above] = min(low[above], low[v])
    size = dict.fromkeys(preorder, 1)
    for v in reversed(preorder[1:]):
        size[up[v]] += size[v]
    parts = []
    at = 1
    while at < len(preorder):
        v = preorder[at]
        if size[v] < below and low[v] >= number[up[v]]:
            part = preorder[at : at + size[v]]
            if ends.isdisjoint(part):
                parts.append(part)
                at += size[v]
                continue
        at += 1
    return parts
