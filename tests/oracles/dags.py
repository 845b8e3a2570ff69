"""Small dags solved by trying everything, from the words of the papers and with no planner's code."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, combinations

from hypothesis import strategies as st

from lowtide.program import Op, Phase, Program, Role, Value

Sets = tuple[frozenset[int], ...]


@dataclass(frozen=True)
class Graph:
    """bytes and ns of each value, and the pairs (u, v) for which making v reads u."""

    bytes: tuple[int, ...]
    ns: tuple[int, ...]
    edges: tuple[tuple[int, int], ...]

    @property
    def values(self) -> frozenset[int]:
        return frozenset(range(len(self.bytes)))

    def size(self, values: frozenset[int]) -> int:
        return sum(self.bytes[v] for v in values)

    def after(self, values: frozenset[int]) -> frozenset[int]:
        """What is made from any of `values`."""
        return frozenset(v for u, v in self.edges if u in values)

    def before(self, values: frozenset[int]) -> frozenset[int]:
        """What any of `values` is made from."""
        return frozenset(u for u, v in self.edges if v in values)


@st.composite
def graphs(draw: st.DrawFn, most: int, *, least: int = 1, ends: bool = False) -> Graph:
    """Graphs of `least` to `most` values; with `ends`, of one source and one target."""
    n = draw(st.integers(least, most))
    pairs = [(u, v) for v in range(n) for u in range(v)]
    chosen = draw(st.integers(0, 2 ** len(pairs) - 1))
    edges = {pair for i, pair in enumerate(pairs) if chosen >> i & 1}
    if ends:
        for v in range(1, n):
            if not any(b == v for _, b in edges):
                edges.add((draw(st.integers(0, v - 1)), v))
        for v in range(n - 1):
            if not any(a == v for a, _ in edges):
                edges.add((v, draw(st.integers(v + 1, n - 1))))
    sizes = draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    times = draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    return Graph(tuple(sizes), tuple(times), tuple(sorted(edges)))


def subsets(values: frozenset[int]) -> Iterator[frozenset[int]]:
    """All of them, small ones first."""
    listed = sorted(values)
    return map(frozenset, chain.from_iterable(combinations(listed, k) for k in range(len(listed) + 1)))


def lower_sets(graph: Graph) -> Sets:
    """The sets that hold every predecessor of their members."""
    return tuple(s for s in subsets(graph.values) if graph.before(s) <= s)


def pruned_sets(graph: Graph) -> Sets:
    """Nothing, everything, and each value with all that leads to it."""
    found = {frozenset[int](), graph.values}
    for v in graph.values:
        closure = frozenset([v])
        while not graph.before(closure) <= closure:
            closure |= graph.before(closure)
        found.add(closure)
    return tuple(found)


def sequences(graph: Graph, family: Sets) -> Iterator[Sets]:
    """Every L_1 < ... < L_k = all."""

    def extend(so_far: Sets, last: frozenset[int]) -> Iterator[Sets]:
        if last == graph.values:
            yield so_far
        for lower in family:
            if last < lower:
                yield from extend((*so_far, lower), lower)

    return extend((), frozenset())


def formula(graph: Graph, sequence: Sets) -> tuple[int, int]:
    """Extra time and peak, as the paper has them."""
    whole = (frozenset[int](), *sequence)
    kept = [frozenset[int]()]
    for lower in sequence:
        boundary = frozenset(v for v in lower if graph.after(frozenset([v])) - lower)
        kept.append(kept[-1] | boundary)
    peaks = []
    for i in range(1, len(whole)):
        ahead = graph.after(whole[i]) - whole[i]
        beside = graph.before(graph.after(whole[i])) - whole[i]
        block = whole[i] - whole[i - 1]
        peaks.append(graph.size(kept[i - 1]) + 2 * graph.size(block) + graph.size(ahead) + graph.size(beside))
    return sum(graph.ns[v] for v in graph.values - kept[-1]), max(peaks)


def best_time(graph: Graph, family: Sets, budget: int, sign: int) -> int | None:
    """Least of sign * extra time over the sequences of `family` within `budget`, for graphs with too many to list.

    Of the ways to one lower set, those of which another has no more of sign * time and of bytes kept are forgotten.
    """
    ways: dict[frozenset[int], list[tuple[int, int]]] = {frozenset(): [(0, 0)]}
    for lower in sorted(family, key=len)[1:]:
        boundary = frozenset(v for v in lower if graph.after(frozenset([v])) - lower)
        ahead = graph.after(lower) - lower
        beside = graph.before(ahead) - lower
        found = []
        for earlier in (s for s in ways if s < lower):
            block = lower - earlier
            more = graph.size(boundary - earlier)
            longer = sum(graph.ns[v] for v in block - boundary)
            around = 2 * graph.size(block) + graph.size(ahead) + graph.size(beside)
            found += [(time + sign * longer, kept + more) for time, kept in ways[earlier] if kept + around <= budget]
        ways[lower] = []
        for time, kept in sorted(found):
            if not ways[lower] or kept < ways[lower][-1][1]:
                ways[lower].append((time, kept))
    return min((time for time, _ in ways[graph.values]), default=None)


def stored_cost(graph: Graph, stored: frozenset[int]) -> int | None:
    """Feng and Huang's cost of storing `stored` with one source and one target; None where a piece is not closed."""
    ends = frozenset(v for v in graph.values if not graph.before(frozenset([v])) or not graph.after(frozenset([v])))
    left = graph.values - stored - ends
    largest = 0
    while left:
        piece: frozenset[int] = frozenset([min(left)])
        while more := ((graph.before(piece) | graph.after(piece)) & left) - piece:
            piece |= more
        if len(graph.before(piece) - piece) != 1 or len(graph.after(piece) - piece) != 1:
            return None
        largest = max(largest, graph.size(piece))
        left -= piece
    return graph.size(stored) + largest


def least_cost(graph: Graph) -> int:
    """The least of `stored_cost` over all sets."""
    inner = frozenset(v for v in graph.values if graph.before(frozenset([v])) and graph.after(frozenset([v])))
    costs = (stored_cost(graph, stored) for stored in subsets(inner))
    return min(cost for cost in costs if cost is not None)


def program(graph: Graph) -> Program:
    """The step as a Program: fwd in order, bwd in reverse; values first, then gradients in the order they are made.

    Op of fwd(v) is v, of bwd(v) 2n - 1 - v, and so is the number of the gradient of v.
    """
    n = len(graph.bytes)
    values = [Value(f"value {v}", graph.bytes[v], Role.ACTIVATION) for v in range(n)]
    values += [Value(f"gradient {v}", graph.bytes[v], Role.GRADIENT) for v in range(n - 1, -1, -1)]
    ops = [
        Op(f"fwd {v}", Phase.FORWARD, tuple(sorted(graph.before(frozenset([v])))), (v,), graph.ns[v]) for v in range(n)
    ]
    for v in range(n - 1, -1, -1):
        users = graph.after(frozenset([v]))
        reads = {*graph.before(users), *(2 * n - 1 - s for s in users)} if users else {v}
        ops.append(Op(f"bwd {v}", Phase.BACKWARD, tuple(sorted(reads)), (2 * n - 1 - v,)))
    return Program(tuple(values), tuple(ops))


def as_program_runs(graph: Graph, runs: tuple[int, ...]) -> tuple[int, ...]:
    """Runs of ops numbered fwd(v) = v, bwd(v) = n + v, as runs of `program`."""
    n = len(graph.bytes)
    return tuple(op if op < n else 3 * n - 1 - op for op in runs)


def short_runs(step: Program, longest: int) -> Iterator[tuple[int, ...]]:
    """Every sequence of at most `longest` runs in which each op runs and reads only what has been written."""
    ops = range(len(step.ops))

    def extend(runs: tuple[int, ...], written: frozenset[int]) -> Iterator[tuple[int, ...]]:
        missing = len(step.ops) - len(set(runs))
        if not missing:
            yield runs
        if len(runs) + missing < longest or missing:
            for op in ops:
                if written.issuperset(step.ops[op].reads) and len(runs) < longest:
                    yield from extend((*runs, op), written | {*step.ops[op].writes})

    return extend((), frozenset())


def least_time(step: Program, budget: int, *, gradients_again: bool = True) -> int | None:
    """Least time of all runs over every order and any number of reruns within `budget`; None where nothing fits.

    Dijkstra over what is in memory and which ops have run; whatever is in memory may be dropped at any time.
    """
    whole = frozenset(range(len(step.ops)))
    settled = set()
    waiting: list[tuple[int, int, frozenset[int], frozenset[int]]] = [(0, 0, frozenset(), frozenset())]
    pushed = 0
    while waiting:
        time, _, memory, done = heapq.heappop(waiting)
        if done == whole:
            return time
        if (memory, done) in settled:
            continue
        settled.add((memory, done))
        next_: list[tuple[int, frozenset[int], frozenset[int]]] = [(time, memory - {v}, done) for v in memory]
        for number, op in enumerate(step.ops):
            if op.phase is Phase.BACKWARD and number in done and not gradients_again:
                continue
            after = memory | {*op.writes}
            if memory.issuperset(op.reads) and sum(step.values[v].bytes for v in after) <= budget:
                next_.append((time + op.ns, after, done | {number}))
        for total, after, ran in next_:
            if (after, ran) not in settled:
                pushed += 1
                heapq.heappush(waiting, (total, pushed, after, ran))
    return None


def least_peak(step: Program, *, gradients_again: bool = True) -> int:
    """The least budget that `least_time` finds something in."""
    low, high = 0, sum(value.bytes for value in step.values)
    while low < high:
        middle = (low + high) // 2
        if least_time(step, middle, gradients_again=gradients_again) is None:
            low = middle + 1
        else:
            high = middle
    return low
