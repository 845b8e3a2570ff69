"""Feng and Huang: store some values of a Dag so that what lies between them can be made again piece by piece."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass

from lowtide.errors import BudgetTooSmall
from lowtide.planners.dag import Dag
from lowtide.planners.division_tree import DivisionTree, Linear, division_tree


@dataclass(frozen=True, slots=True)
class Storage:
    """Values to store.

    cost     bytes of the stored values and of the largest piece between them; source and target not counted
    stored   in index order, without source and target
    """

    cost: int
    stored: tuple[int, ...]


def solve(dag: Dag, budget: int | None) -> Storage:
    """Storage of least cost; BudgetTooSmall when that is more than `budget`.

    Over the sets R of values such that, with R, source and target taken out, every weakly connected piece receives
    edges from exactly one value and sends edges to exactly one. Those pieces are regions of the division tree, or lie
    between two cuts of a linear one; R is all that no chosen piece holds. With C a bound on the bytes of a piece,

        f(region, C)     = 0                                                  if bytes(region) <= C, otherwise
        f(complicate, C) = bytes(stored) + sum of f over the regions inside
        f(linear, C)     = shortest way from entry to exit over the cuts between; a way that stops at cut c pays
                           bytes(c); from a to the next cut it pays f of the regions in the gap, from a to a later
                           cut b nothing, if at most C bytes lie between
        cost             = min over C of  C + sum of f over the regions from source to target

    f falls as C grows, so between C = a and C = b no cost is below a + 1 + f(b): intervals of C are halved until none
    can hold a better one.

    Optimal in the class. The cost counts no gradients and no second copy, so it is no peak of a training step.
    Time O(n) for each C tried, after the division tree. Ref: Feng and Huang 2018, arXiv:1808.00079v1.
    """
    tree = division_tree(dag)
    most = sum(tree.regions[number].bytes for number in tree.top)
    low, high = _bytes_stored(dag, tree, 0), 0
    best, bound = min((low, 0), (most, most))
    intervals = [(1 + high, 0, low, most, high)]
    while intervals:
        least, a, at_a, b, at_b = heapq.heappop(intervals)
        if least >= best or at_a == at_b or b - a < 2:
            continue
        middle = (a + b) // 2
        at = _bytes_stored(dag, tree, middle)
        best, bound = min((best, bound), (middle + at, middle))
        heapq.heappush(intervals, (a + 1 + at, a, at_a, middle, at))
        heapq.heappush(intervals, (middle + 1 + at_b, middle, at, b, at_b))
    storage = Storage(best, _stored(dag, tree, bound))
    if budget is not None and best > budget:
        message = f"no set of stored values costs at most {budget} bytes; the least cost is {best}"
        raise BudgetTooSmall(message, budget=budget, needed=best)
    return storage


def plans(dag: Dag, *, bounds: int) -> list[Storage]:
    """The storage of least cost, and the least storage for each of `bounds` bounds on the bytes of a piece: from 0,
    where everything is stored, in even ratios to all bytes, where nothing is.
    """
    tree = division_tree(dag)
    most = sum(tree.regions[number].bytes for number in tree.top)
    smallest = min((size for size in dag.bytes if size), default=1)
    tried = {round(smallest * (most / smallest) ** (i / bounds)) for i in range(1, bounds)} if most else set()
    found = {solve(dag, None).stored, *(_stored(dag, tree, bound) for bound in (0, *sorted(tried), most))}
    return sorted(
        (Storage(sum(dag.bytes[v] for v in stored) + _largest_piece(dag, stored), stored) for stored in found),
        key=lambda storage: (storage.cost, storage.stored),
    )


def _largest_piece(dag: Dag, stored: tuple[int, ...]) -> int:
    """Bytes of the largest weakly connected part of what is neither stored nor source nor target."""
    left = {v for v in range(len(dag)) if dag.before[v] and dag.after[v]} - set(stored)
    largest = 0
    while left:
        piece = [left.pop()]
        for v in piece:
            near = left.intersection(dag.before[v]).union(left.intersection(dag.after[v]))
            left -= near
            piece += near
        largest = max(largest, sum(dag.bytes[v] for v in piece))
    return largest


def _bytes_stored(dag: Dag, tree: DivisionTree, bound: int) -> int:
    f = _all_stored(dag, tree, bound)
    return sum(f[number] for number in tree.top)


def _all_stored(dag: Dag, tree: DivisionTree, bound: int) -> list[int]:
    """f of every region, parts before wholes."""
    f = [0] * len(tree.regions)
    for number in range(len(tree.regions) - 1, -1, -1):
        region = tree.regions[number]
        if region.bytes <= bound:
            continue
        if isinstance(region, Linear):
            f[number] = _way(dag, tree, region, bound, f)[0]
        else:
            f[number] = sum(dag.bytes[v] for v in region.stored) + sum(f[part] for part in region.inside)
    return f


def _way(dag: Dag, tree: DivisionTree, region: Linear, bound: int, f: list[int]) -> tuple[int, list[int]]:
    """Bytes stored on the shortest way through a linear region, and for each stop the stop before it.

    Stop 0 is the entry, stop k the k-th cut, the last one the exit. Between stops a and b lie near[b] - far[a] bytes.
    """
    weight = [0, *(dag.bytes[v] for v in region.cuts), 0]
    near, far = [0], [0]
    length = [0]
    came = [0]
    # Stops from which the next one but one is in reach; their lengths rise from left to right, so the first is best.
    window: deque[int] = deque()
    for b in range(1, len(weight)):
        gap = region.gaps[b - 1]
        near.append(far[-1] + sum(tree.regions[part].bytes for part in gap))
        far.append(near[-1] + weight[b])
        if b >= 2:
            while window and length[window[-1]] >= length[b - 2]:
                window.pop()
            window.append(b - 2)
        while window and near[b] - far[window[0]] > bound:
            window.popleft()
        short, start = length[b - 1] + sum(f[part] for part in gap), b - 1
        if window and length[window[0]] < short:
            short, start = length[window[0]], window[0]
        length.append(short + weight[b])
        came.append(start)
    return length[-1], came


def _stored(dag: Dag, tree: DivisionTree, bound: int) -> tuple[int, ...]:
    """The values that _bytes_stored counts."""
    f = _all_stored(dag, tree, bound)
    stored: list[int] = []
    open_ = [number for number in tree.top if tree.regions[number].bytes > bound]
    while open_:
        region = tree.regions[open_.pop()]
        if isinstance(region, Linear):
            came = _way(dag, tree, region, bound, f)[1]
            b = len(came) - 1
            parts: list[int] = []
            while b:
                if b <= len(region.cuts):
                    stored.append(region.cuts[b - 1])
                if came[b] == b - 1:
                    parts += region.gaps[b - 1]
                b = came[b]
        else:
            stored += region.stored
            parts = list(region.inside)
        open_ += [part for part in parts if tree.regions[part].bytes > bound]
    return tuple(sorted(stored))
