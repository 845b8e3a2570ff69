"""Every choice of checkpoints on a line of layers, tried one by one. Shares no code with the planner."""

from __future__ import annotations

from itertools import combinations, pairwise


def _segment(d: tuple[int, ...], i: int, j: int, objective: str) -> int:
    """What the segment from checkpoint i to checkpoint j holds while it is replayed."""
    if objective == "activations":
        return sum(d[i + 1 : j])
    if objective == "paper":
        return sum(d[i + 1 : j + 1]) + max(d[i : j + 1]) + d[j]
    if objective == "torch":
        return max(sum(d[i + 1 : k + 1]) + d[k] + d[k - 1] for k in range(i + 1, j + 1))
    at_the_end = sum(d[i + 1 : j + 1]) + d[j] + d[j - 1]
    on_the_way = [sum(d[i + 1 : k + 1]) + d[k] + d[k - 1] + 2 * d[j] for k in range(i + 1, j)]
    return max([at_the_end, *on_the_way])


def peak(d: tuple[int, ...], layers: tuple[int, ...], objective: str) -> int:
    """The objective's peak of one choice of checkpoints (first and last layer among them)."""
    if objective == "sum":
        inside = [sum(d[i + 1 : j]) for i, j in pairwise(layers)]
        return sum(d[c] for c in layers[1:-1]) + max(inside, default=0)
    # While the segment right of layers[s] is replayed, layers[0..s] are alive; at the end, the last layer too.
    moments = [sum(d[c] for c in layers)]
    for s in range(len(layers) - 1):
        kept = sum(d[c] for c in layers[: s + 1])
        moments.append(kept + _segment(d, layers[s], layers[s + 1], objective))
    return max(moments)


def least_peak(d: tuple[int, ...], objective: str) -> int:
    """The least peak over all 2^(n-2) choices."""
    last = len(d) - 1
    if last == 0:
        return peak(d, (0,), objective)
    inner = range(1, last)
    return min(peak(d, (0, *chosen, last), objective) for size in range(last) for chosen in combinations(inner, size))
