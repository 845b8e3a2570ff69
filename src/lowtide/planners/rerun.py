"""Lazy reruns: from the forward values that are kept to the sequence of runs."""

from __future__ import annotations

from collections.abc import Collection
from heapq import heappop, heappush

from lowtide.planners.step import Step


def expand(step: Step, kept: Collection[int], again: Collection[int] = frozenset()) -> list[int]:
    """The sequence that keeps the values `kept` across the boundary and makes every other one again.

    Forward ops in the program's order; then each backward op in the program's order, preceded by the reruns of
    what it reads and is not there, and of what those need, in the program's order: as late as possible. A value
    that is made again stays until the last op that reads it; a value of `again` does not stay, and is made anew
    for every backward op that needs it. A value of both is kept for its first use and made anew for the later ones.

    What cannot be made again, and outputs, are kept whether `kept` names them or not. A forward op that is not
    needed before backward begins, and of whose writes none is kept, has its first run in backward.
    Time O(n) plus that of the runs that come out; many values in `again` can make those O(n^2).
    """
    there = [False] * len(step.writer)
    for v, forced in enumerate(step.forced):
        there[v] = forced or step.held[v]
    for v in kept:
        there[v] = True
    backward = _backward(step, there, frozenset(again))
    return [*_forward(step, kept, backward), *backward]


def _backward(step: Step, there: list[bool], again: frozenset[int]) -> list[int]:
    """The backward ops with their reruns; `there` says what is in memory when it begins, and is used up."""
    reads, writes, writer, forward = step.reads, step.writes, step.writer, step.forward
    runs: list[int] = []
    for b in range(step.boundary, len(reads)):
        wanted = {v for v in reads[b] if forward[v] and not there[v]}
        drop = {v for v in reads[b] if v in again} if again else set()
        if wanted:
            # Highest number first, so that an op comes out of the heap once, after all that need its writes.
            heap: list[int] = []
            needed: set[int] = set()
            for v in wanted:
                _push(heap, needed, writer[v])
            while heap:
                op = -heappop(heap)
                for v in reads[op]:
                    if again and v in again:
                        drop.add(v)
                    if not there[v]:
                        _push(heap, needed, writer[v])
            for op in sorted(needed):
                runs.append(op)
                for v in writes[op]:
                    there[v] = True
                    if v in again:
                        drop.add(v)
        runs.append(b)
        for v in drop:
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
