"""Checkpoints of least peak memory on a line of layers, in linear time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide.errors import BudgetTooSmall
from lowtide.planners.sizes import Sizes


class Objective(Enum):
    """What a segment between two checkpoints is said to hold while it is replayed; see `solve`."""

    SUM = "sum"
    ACTIVATIONS = "activations"
    PAPER = "paper"
    TORCH = "torch"
    REENTRANT = "reentrant"


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Which layers' outputs are kept.

    peak     bytes, by the objective asked for
    layers   numbers of the kept layers, increasing; the first and the last layer are always among them
    """

    peak: int
    layers: tuple[int, ...]


def solve(sizes: Sizes, budget: int | None = None, *, objective: Objective = Objective.TORCH) -> Checkpoints:
    """Checkpoints 0 = c_0 < ... < c_m = n-1 of least peak; BudgetTooSmall if that is above `budget` bytes.

    Every other value is rebuilt once, from the nearest checkpoint to its left. With d the bytes and P their
    prefix sums, a checkpoint is freed when the segment to its right has been reversed:

        M(n-1) = d[n-1]
        M(i)   = d[i] + min over j > i of max(M(j), U(i, j))        the peak is M(0)

        activations   U(i, j) = sum of d[k], i < k < j
        paper         U(i, j) = sum of d[k], i < k <= j  +  max of d[k], i <= k <= j  +  d[j]
        torch         U(i, j) = max over i < k <= j of P(k) - P(i) + d[k] + d[k-1]
        reentrant     U(i, j) = max(P(j) - P(i) + d[j] + d[j-1],
                                    max over i < k < j of P(k) - P(i) + d[k] + d[k-1] + 2 d[j])

    and for `sum` the peak is the bytes of all checkpoints but the first and last, plus the most that lies strictly
    inside one segment. `torch` is what torch.utils.checkpoint holds, `reentrant` what its older variant does.

    Optimal over all choices of checkpoints, for the peak as the objective defines it. Time is not weighed, parameters
    are not counted, and nothing is rebuilt from a value that is itself rebuilt; `rotor` lifts all but the second.
    Time O(n) for activations, paper and torch; O(n^2) for reentrant; for sum O(n) a probe, see `_least_sum`.
    Ref: Hong, Tsai, Wang, Liu and Wu 2025, on optimal gradient checkpointing for memory.
    """
    d = sizes.bytes
    if len(d) == 1:
        best = Checkpoints(0 if objective is Objective.SUM else d[0], (0,))
    elif objective is Objective.SUM:
        best = _least_sum(d)
    elif objective is Objective.REENTRANT:
        best = _least_reentrant(d)
    else:
        best = _least_windowed(d, objective)
    if budget is not None and budget < best.peak:
        raise BudgetTooSmall(
            f"no choice of checkpoints fits in {budget} bytes: these {len(d)} layers need at least {best.peak}. "
            f"Raise the budget to {best.peak}.",
            budget=budget,
            needed=best.peak,
        )
    return best


def _least_windowed(d: Sequence[int], objective: Objective) -> Checkpoints:
    """M by a deque, for every U(i, j) = h(j) + max of g(k), i < k <= j, - P(i).

    As i falls, U(i, j) rises for every j. If U also rises with j, a candidate j is worthless for good once a nearer
    one has M no larger; so M falls strictly along the live candidates, nearest first. And the farthest, b, is
    worthless for good once its neighbour p has U(i, p) >= M(p), since U(i, b) >= U(i, p) from here on. When neither
    applies, every candidate before p costs its own M > M(p), and the best is p or b.

    U rises with j where h is zero. For `paper` h(j) = P(j) + d[j] may fall, but a new candidate i + 1 with
    h(i+1) >= h(j) for a live j can be refused. From P(j) - P(i+1) + d[j] <= d[i+1] all of d[i+2..j] are at most
    d[i+1], so the maximum is d[i+1] at least on either side and U(x, j) <= U(x, i+1) for all x <= i. And
    M(j) <= M(i+1): follow i+1's best checkpoints to the first, c, whose successor e has e >= j. If e = j,
    M(i+1) >= M(j) at once. Else M(j) <= d[j] + max(M(e), U(c, e)) = d[j] - d[c] + M(c), where M(c) <= M(i+1) - d[i+1]
    for c > i+1, and d[j] <= d[i+1]. So the live candidates have h rising, and with it U.

    The maximum of g over i < k <= p is kept as a second deque, of the k that beat all nearer ones; what it drops when
    p moves left is remembered as the gap (p, b].
    """
    P = list(accumulate(d))
    n = len(d)
    h = [0] * n
    if objective is Objective.ACTIVATIONS:
        g = [0, *P[:-1]]
    elif objective is Objective.TORCH:
        g = [0, *(sum_k + here + before for sum_k, here, before in zip(P[1:], d[1:], d))]
    else:
        g = [0, *map(max, d[1:], d)]
        h = list(map(int.__add__, P, d))
    M = [0] * n
    choice = [0] * n
    M[n - 1] = d[n - 1]
    live = [n - 1]  # nearest candidate last, so that the farthest is live[far]
    far = 0
    records = [n - 1]  # the k <= p (<= b if there is no p) whose g beats all nearer ones, nearest last
    first = 0  # the largest of them is records[first]
    gap = -1  # the largest g over p < k <= b, or less if some k <= p beats it
    for i in range(n - 2, -1, -1):
        j = i + 1
        if j < n - 1:
            g_j = g[j]
            while len(records) > first and g[records[-1]] <= g_j:
                records.pop()
            records.append(j)
            if h[j] <= h[live[-1]]:
                M_j = M[j]
                while len(live) > far and M[live[-1]] >= M_j:
                    live.pop()
                live.append(j)
                if len(live) - far <= 2:  # j has become p, or b where it is alone
                    top = g[records[first]]
                    gap = -1 if len(live) - far == 1 else gap if records[first] == j or gap > top else top
                    while records[first] > j:
                        first += 1
        base = P[i]
        while len(live) - far >= 2:
            p = live[far + 1]
            held = h[p] + g[records[first]] - base
            if held < M[p]:
                break
            far += 1
            gap = -1
            if len(live) - far >= 2:
                p = live[far + 1]
                if records[first] > p:
                    gap = g[records[first]]
                    while records[first] > p:
                        first += 1
        b = live[far]
        top = g[records[first]]
        held = h[b] + (top if top > gap else gap) - base
        best = held if held > M[b] else M[b]
        if len(live) - far >= 2 and M[live[far + 1]] < best:
            b = live[far + 1]
            best = M[b]
        M[i] = d[i] + best
        choice[i] = b
    return Checkpoints(M[0], _follow(choice, n))


def _follow(choice: Sequence[int], n: int) -> tuple[int, ...]:
    layers = [0]
    while layers[-1] < n - 1:
        layers.append(choice[layers[-1]])
    return tuple(layers)


def _least_reentrant(d: Sequence[int]) -> Checkpoints:
    """M with U as it stands, one row of it at a time. U may fall with j, and no candidate is ever refused."""
    n = len(d)
    exact = np.int64 if 4 * sum(d) < 2**63 else np.object_
    size: NDArray[Any] = np.array(d, dtype=exact)
    P = size.cumsum()
    pair = size[1:] + size[:-1]  # pair[k-1] = d[k] + d[k-1]
    M = size.copy()
    choice = [0] * n
    for i in range(n - 2, -1, -1):
        own = P[i + 1 :] - P[i] + pair[i:]
        held = own.copy()
        if len(own) > 1:
            held[1:] = np.maximum(own[1:], np.maximum.accumulate(own[:-1]) + 2 * size[i + 2 :])
        cost = np.maximum(M[i + 1 :], held)
        j = int(cost.argmin())
        M[i] = size[i] + cost[j]
        choice[i] = i + 1 + j
    return Checkpoints(int(M[0]), _follow(choice, n))


def _least_sum(d: Sequence[int]) -> Checkpoints:
    """Least bytes of interior checkpoints plus most bytes strictly inside a segment.

    With f(w) the least bytes of checkpoints such that no segment holds more than w inside, the answer is the least
    w + f(w). As f never rises with w, between two probes lo < hi it is at least lo + 1 + f(hi): intervals that
    cannot win are dropped, the most promising one is halved. A probe at w that finds a plan whose largest segment is
    smaller than w settles everything in between. At most one probe in two misses a new value of f or an end of its
    stretch, so time is O(n) for each of few probes, and O(n^3 log(sum d)) when all segment sums matter.
    """
    layers, kept, inside = _probe_sum(d, sum(d))
    best = Checkpoints(kept + inside, layers)
    intervals = [(kept, 0, inside - 1, kept)]  # (a bound on the cost, smallest w, largest w, f just above)
    while intervals:
        bound, low, high, above = heappop(intervals)
        if bound >= best.peak:
            break
        if low > high:
            continue
        middle = (low + high) // 2
        layers, kept, inside = _probe_sum(d, middle)
        if kept + inside < best.peak:
            best = Checkpoints(kept + inside, layers)
        heappush(intervals, (low + kept, low, inside - 1, kept))
        if kept > above:
            heappush(intervals, (middle + 1 + above, middle + 1, high, above))
    return best


def _probe_sum(d: Sequence[int], most: int) -> tuple[tuple[int, ...], int, int]:
    """Checkpoints of least bytes such that no segment holds more than `most` strictly inside; O(n).

    F(j) = d[j] + min of F(i), i < j, with d[i+1] + ... + d[j-1] <= most: the least of a window that moves right.
    """
    n = len(d)
    P = list(accumulate(d))
    F = [0] * n
    choice = [0] * n
    window = [0]  # F rises along it
    first = 0
    for j in range(1, n):
        reach = P[j - 1] - most
        while P[window[first]] < reach:
            first += 1
        choice[j] = window[first]
        F[j] = F[window[first]] + (d[j] if j < n - 1 else 0)
        while len(window) > first and F[window[-1]] >= F[j]:
            window.pop()
        window.append(j)
    layers = [n - 1]
    while layers[-1] > 0:
        layers.append(choice[layers[-1]])
    layers.reverse()
    inside = max(P[j - 1] - P[i] for i, j in pairwise(layers))
    return tuple(layers), F[n - 1], inside
