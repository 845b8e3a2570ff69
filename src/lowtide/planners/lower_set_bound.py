"""Lower bounds on how a sequence of lower sets can be completed: the budget priced, level by level."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lowtide.planners.lower_set_arcs import FAR, Arcs
from lowtide.planners.lower_set_family import Ints, LowerSets

Floats = NDArray[np.float64]

LEVELS = 128
CLIMBS = 60
MOMENTUM = 0.7
STEPS_CLIMBED = 500_000_000


@dataclass(frozen=True, slots=True)
class Bound:
    """No completion of a sequence that is at set p with time T and u bytes kept ends below T + price[p] u + rest[p].

    A sequence crosses each level, a number of members, in exactly one step. Lagrange: that step's limit on the bytes
    kept is lifted, and each byte over it costs the level's price (each byte under it earns as much). price[p] is the
    sum over the levels still to be crossed at p; rest is a shortest way over the steps. At prices 0 the budget is
    forgotten.
    """

    price: Floats
    rest: Floats

    @property
    def least(self) -> float:
        """What no sequence ends below."""
        return float(self.rest[0])


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is known before the search.

    free     the bound at prices 0
    best     the highest bound of the prices tried
    reached  signed time of some sequence within the budget; the optimum is not above it
    """

    free: Bound
    best: Bound
    reached: int


def bounds(sets: LowerSets, arcs: Arcs, sign: int) -> Bounds:
    """Bounds on sign * T, by subgradient steps with momentum: a level's price rises with the bytes by which the
    sequence that gives the bound oversteps its limit there.
    """
    members = sets.member.sum(axis=0)
    levels = min(LEVELS, len(sets.member))
    level = np.minimum(members * levels // len(sets.member), levels - 1)
    level[-1] = levels
    prices = np.zeros(levels)
    free, over, time = _relax(arcs, sign, level, prices)
    best, at_best, over_best, way = free, prices, over, np.zeros(levels)
    reached = min(_greedy(arcs, sign, free), FAR if time is None else time)
    pace, idle = 1.0, 0
    # Climbing pays while a pass over the steps is cheap beside the search that it shortens.
    for climb in range(1, max(12, min(CLIMBS, STEPS_CLIMBED // len(arcs.steps.start)))):
        way = over + MOMENTUM * way
        uphill = np.where((prices <= 0) & (way < 0), 0.0, way)
        if reached - best.least <= max(1.0, 1e-3 * abs(best.least)) or not uphill.any():
            break
        prices = np.maximum(0.0, prices + pace * (reached - best.least) / float(uphill @ uphill) * uphill)
        tried, over, time = _relax(arcs, sign, level, prices)
        if time is not None:
            reached = min(reached, time)
        if climb % 8 == 0:
            reached = min(reached, _greedy(arcs, sign, tried))
        if tried.least > best.least:
            best, at_best, over_best, idle = tried, prices, over, 0
        else:
            idle += 1
        if idle == 4:
            pace, idle = pace / 2, 0
            prices, over, way = at_best, over_best, np.zeros(levels)
    return Bounds(free, best, reached)


def _relax(arcs: Arcs, sign: int, level: Ints, prices: Floats) -> tuple[Bound, Floats, int | None]:
    """The bound at these prices, the bytes by which its sequence oversteps each level's limit, and that sequence's
    signed time if it oversteps none.
    """
    crossed = np.concatenate([[0.0], np.cumsum(prices)])[level]
    price = crossed[-1] - crossed
    rest = np.full(len(level), np.inf)
    rest[-1] = 0.0
    total = np.full(len(arcs.steps.start), np.inf)
    for first, last in arcs.groups:
        row = arcs.between(first, last)
        if not len(row.start):
            continue
        counts = np.diff(arcs.ends[first : last + 1])
        here = sign * row.time + np.repeat(price[first:last], counts) * row.kept
        here += np.repeat(rest[first:last], counts)
        here -= (np.repeat(crossed[first:last], counts) - crossed[row.start]) * row.most
        np.minimum.at(rest, row.start, here)
        total[arcs.ends[first] : arcs.ends[last]] = here
    # The sequence itself, from the first set on: a step whose total is the rest of where it starts.
    on_way = np.flatnonzero(total == rest[arcs.steps.start])
    next_step = dict(zip(arcs.steps.start[on_way].tolist(), on_way.tolist()))
    over = np.zeros(len(prices))
    p, kept, time, fits = 0, 0, 0, True
    while p < len(level) - 1:
        step = next_step[p]
        to = int(np.searchsorted(arcs.ends, step, side="right")) - 1
        excess = kept - int(arcs.steps.most[step])
        over[level[p] : level[to]] += excess
        fits &= excess <= 0
        kept += int(arcs.steps.kept[step])
        time += sign * int(arcs.steps.time[step])
        p = to
    return Bound(price, rest), over, time if fits else None


def _greedy(arcs: Arcs, sign: int, bound: Bound) -> int:
    """Signed time of a sequence within the budget; to each set only the way best at these prices is followed."""
    time = np.zeros(len(arcs.ends) - 1, dtype=np.int64)
    kept = np.full(len(arcs.ends) - 1, FAR, dtype=np.int64)
    kept[0] = 0
    for p, row in arcs.forward():
        fits = np.flatnonzero(kept[row.start] <= row.most)
        if len(fits):
            start = row.start[fits]
            times, sizes = time[start] + sign * row.time[fits], kept[start] + row.kept[fits]
            best = (times + bound.price[p] * sizes).argmin()
            time[p], kept[p] = times[best], sizes[best]
    return int(time[-1])
