"""Lazy reruns: from the forward values that are kept to the sequence of runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from heapq import heappop, heappush
from types import MappingProxyType

from lowtide.planners.step import Step

NOTHING: Mapping[int, Collection[int]] = MappingProxyType({})


def expand(step: Step, kept: Collection[int], drops: Mapping[int, Collection[int]] = NOTHING) -> list[int]:
    """The sequence that keeps the values `kept` across the boundary and makes every other one again.

    Forward ops in the program's order; then each backward op in the program's order, preceded by the reruns of
    what it reads and is not there, and of what those need, in the program's order: as late as possible. A value
    that is there stays until the last op that reads it, but for the values `drops[b]`: they are dropped after
    backward op b, and made anew when they are needed next.

    What cannot be made again, and outputs, are kept whatever `kept` and `drops` say. A forward op that is not
    needed before backward begins, and of whose writes none is kept, has its first run in backward.
    Time O(n) plus that of the runs that come out.
    """
    there = [forced or held for forced, held in zip(step.forced, step.held)]
    for v in kept:
        there[v] = True
    backward = _backward(step, there, drops)
    return [*_forward(step, kept, backward), *backward]


def _backward(step: Step, there: list[bool], drops: Mapping[int, Collection[int]]) -> list[int]:
    """The backward ops with their reruns; `there` says what is in memory when it begins, and is used up."""
    reads, writes, writer, forward = step.reads, step.writes, step.writer, step.forward
    runs: list[int] = []
    for b in range(step.boundary, len(reads)):
        wanted = [v for v in reads[b] if forward[v] and not there[v]]
        if wanted:
            # Highest number first, so that an op comes out of the heap once, after all that need its writes.
            heap: list[int] = []
            needed: set[int] = set()
            for v in wanted:
                _push(heap, needed, writer[v])
            while heap:
                for v in reads[-heappop(heap)]:
                    if not there[v]:
                        _push(heap, needed, writer[v])
            for op in sorted(needed):
                runs.append(op)
                for v in writes[op]:
                    there[v] = True
        runs.append(b)
        for v in drops.get(b, ()):
            there[v] = step.forced[v] or step.held[v]
    return runs


def _push(heap: list[int], needed: set[int], op: int) -> None:
    if op not in needed:
        needed.add(op)
        heappush(heap, -op)


def _forward(step: Step, kept: Collection[int], backward: list[int]) -> list[int]:
    """The forward ops to run before backward: all but those whose first run can wait."""
    wanted = list(step.essential)
    made_later = set(backward)
    for op in range(step.boundary):
        if op not in made_later:
            wanted[op] = True
    for v in kept:
        if step.forward[v]:
            wanted[step.writer[v]] = True
    for op in range(step.boundary - 1, -1, -1):
        if wanted[op]:
            for v in step.reads[op]:
                wanted[step.writer[v]] = True
    return [op for op in range(step.boundary) if wanted[op]]
