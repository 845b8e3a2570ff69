"""nested: segments of segments, for budgets below what keeping and rerunning once can reach."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from lowtide.plan import Plan
from lowtide.planners import priced
from lowtide.planners.bound import narrowed
from lowtide.planners.choice import Tried
from lowtide.planners.floor import floor
from lowtide.planners.promise import promise, too_small
from lowtide.planners.replay import replay
from lowtide.planners.search import Search
from lowtide.planners.segments import Cuts, Segments
from lowtide.planners.step import Step
from lowtide.program import Program

Ints = NDArray[np.int64]
NAME = "nested"
SEARCHED = "segments of segments of the forward pass, cut where few bytes cross, then mended and polished"
SLOTS = 256
CUTS = 96
NEVER = 2**61


def solve(program: Program, budget: int) -> Plan:
    """A fast plan whose peak is at most `budget` bytes, of those that rerun segments of segments.

    Positions 0 = p_0 < ... < p_K in the forward order cut it in segments; boundary(i) is what is made before p_i and
    read from p_i on, or by the backward ops that must wait for the ops from p_i on. A way w says which values of a
    segment are kept when it has been run forward; the others are made again one by one as backward reads them.
    C(i, j, h) is the least time to finish backward of the segment between p_i and p_j when boundary(i) and h more
    bytes are held:

        C(i, j, h) = min of  again(i, j, w), if that fits: run the segment forward in way w, and then its backward
                             sweep(i, k, w) + C(k, j, h + bytes(boundary(i) - boundary(k)) + kept(i, k, w))
                                 + serve(i, k, w), or C(i, k, h) where the way keeps nothing, for every i < k < j

    and at the top the sweeps are free, for they are the forward pass itself. Cuts are at most 96, where few bytes
    cross; ways keep all that backward reads of a segment, or the half, the quarter, or none of those bytes that is
    dearest to make again; and h is rounded up to 256ths of the budget. The best sequence of this kind is then taken
    apart into what is kept and dropped, mended and polished (see `search.Search`).
    It contains Rotor's plans of chains whose values are kept whole or not at all; nothing is claimed beyond that.
    Time O(K^3 SLOTS + K^2 n), and that of the search.
    Ref: Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova 2019, arXiv 1911.13214.
    """
    step = Step.of(program)
    plain = range(len(program.ops))
    peak = replay(program, plain).peak
    if peak <= budget:
        return promise(program, plain, budget, planner=NAME, searched=SEARCHED)
    if not step.boundary or step.boundary == len(plain):
        raise too_small(program, plain, budget, planner=NAME)
    segments = segmented(step)
    best = look(segments, budget)
    if best is None:
        lowest = floor(
            step, lambda smaller: fitting(segments, Search(step, smaller, priced.tries(step))), priced.tries(step)
        )
        if lowest.seen.peak > budget:
            raise too_small(program, lowest.runs.tolist(), budget, planner=NAME)
        best = Search(step, budget, priced.tries(step)).polish(lowest)
    _, proof = narrowed(step, budget)
    return promise(program, best.runs.tolist(), budget, planner=NAME, searched=SEARCHED, bound=proof.at(budget))


def look(segments: Segments, budget: int) -> Tried | None:
    """The fastest that the recursion finds, mended and polished; None where nothing fits."""
    search = Search(segments.cuts.step, budget, priced.tries(segments.cuts.step))
    polished = [search.polish(tried) for tried in fitting(segments, search)[:2]]
    return min(polished, key=lambda tried: tried.rank, default=None)


def segmented(step: Step) -> Segments:
    """The step's segments, in ways that keep all, the dearest half, the dearest quarter and nothing."""
    cut, arrays = Cuts.of(step, CUTS), step.program.arrays
    used = step.flags.used & cut.movable
    worth = np.where(used, arrays.ns[arrays.writer] / np.maximum(1, arrays.bytes), -1.0)
    order = np.argsort(-worth, kind="stable")
    below = np.zeros(used.size)
    below[order] = np.where(used[order], arrays.bytes[order], 0).cumsum()
    total = float(arrays.bytes[used].sum())
    return Segments.of(cut, [used & (below <= share * total) for share in (1, 0.5, 0.25, 0)])


def fitting(segments: Segments, search: Search) -> list[Tried]:
    """What the recursion finds at this budget and a little below and above it, mended; fastest first."""
    step = segments.cuts.step
    fits = []
    for percent in (100, 96, 104, 110):
        runs = Table.of(segments, search.budget * percent // 100).runs()
        if runs is None:
            continue
        itself = Tried.itself(step, runs)
        fits += [tried for tried in (itself, search.repair(search.attempt(itself.choice))) if search.fits(tried)]
    return sorted(fits, key=lambda tried: (tried.seen.time, tried.seen.peak))


@dataclass(frozen=True)
class Table:
    """The recursion at one budget. Where `cut` is -1 a segment is run again at once, in the way that stands beside.

    cut, way   by first cut, last cut and slot
    top        least time by first cut and slot, at the top
    next, how  by first cut and slot at the top: the cut swept to and the way; the last cut with way -1: run it again
    """

    segments: Segments
    unit: int
    cut: NDArray[np.int16]
    way: NDArray[np.int8]
    top: Ints
    next: NDArray[np.int16]
    how: NDArray[np.int8]

    @classmethod
    def of(cls, segments: Segments, budget: int) -> Table:
        """Fill it."""
        unit = max(1, -(-budget // SLOTS))
        s = segments
        filled = _fill(
            budget,
            unit,
            s.cuts.crossing,
            s.cuts.across[s.cuts.moment],
            s.sweep_time,
            s.sweep_peak,
            s.kept_bytes,
            s.kept_time,
            s.kept_peak,
            s.again_time,
            s.again_peak,
            s.freed,
        )
        return cls(segments, unit, *filled)

    def runs(self) -> Ints | None:
        """The sequence; None where there is none."""
        if self.top[0, 0] >= NEVER:
            return None
        backward: list[Ints] = [np.arange(self.segments.cuts.step.boundary)]
        self._emit_top(0, 0, backward)
        return np.concatenate(backward)

    def _held(self, h: int, i: int, k: int, way: int) -> int:
        s = self.segments
        return h + -(-int(s.freed[i, k] + s.kept_bytes[way, i, k]) // self.unit)

    def _emit_top(self, i: int, h: int, runs: list[Ints]) -> None:
        s, last = self.segments, self.segments.cuts.places.size - 1
        stack: list[tuple[int, int, int, int]] = []
        while True:
            k, way = int(self.next[i, h]), int(self.how[i, h])
            if way < 0:
                self._emit(i, k, h, runs)
                break
            stack.append((i, k, h, way))
            if k == last:
                break
            i, h = k, self._held(h, i, k, way)
        for i, k, h, way in reversed(stack):
            if way == len(s.keeps):
                self._emit(i, k, h, runs)
            else:
                runs.append(s.served(way, i, k, again=False))

    def _emit(self, i: int, j: int, h: int, runs: list[Ints]) -> None:
        s = self.segments
        k, way = int(self.cut[i, j, h]), int(self.way[i, j, h])
        if k < 0:
            runs.append(s.served(way, i, j, again=True))
            return
        nothing = way == len(s.keeps)
        runs.append(s.swept(-1 if nothing else way, i, k))
        self._emit(k, j, self._held(h, i, k, way), runs)
        if nothing:
            self._emit(i, k, h, runs)
        else:
            runs.append(s.served(way, i, k, again=False))


@njit(cache=True)
def _fill(
    budget: int,
    unit: int,
    crossing: Ints,
    across: Ints,
    sweep_time: Ints,
    sweep_peak: Ints,
    kept_bytes: Ints,
    kept_time: Ints,
    kept_peak: Ints,
    again_time: Ints,
    again_peak: Ints,
    freed: Ints,
) -> tuple[NDArray[np.int16], NDArray[np.int8], Ints, NDArray[np.int16], NDArray[np.int8]]:
    """See Table; `across` is by cut."""
    cuts, ways = crossing.size, again_time.shape[0]
    slots = SLOTS + 1
    cost = np.full((cuts, cuts, slots), NEVER, dtype=np.int64)
    cut = np.full((cuts, cuts, slots), -1, dtype=np.int16)
    how = np.full((cuts, cuts, slots), -1, dtype=np.int8)
    for length in range(1, cuts):
        for i in range(cuts - length):
            j = i + length
            room = budget - crossing[i]
            for way in range(ways):
                fits = min(slots, (room - again_peak[way, i, j]) // unit + 1)
                for h in range(fits):
                    if again_time[way, i, j] < cost[i, j, h]:
                        cost[i, j, h] = again_time[way, i, j]
                        how[i, j, h] = way
            for k in range(i + 1, j):
                for way in range(ways + 1):
                    more = -(-(freed[i, k] + kept_bytes[way, i, k]) // unit)
                    fits = min(slots - more, (room - sweep_peak[way, i, k] - across[j]) // unit + 1)
                    if way < ways:
                        fits = min(fits, (room - kept_peak[way, i, k]) // unit + 1)
                    for h in range(fits):
                        rest = kept_time[way, i, k] if way < ways else cost[i, k, h]
                        time = sweep_time[way, i, k] + cost[k, j, h + more] + rest
                        if time < cost[i, j, h]:
                            cost[i, j, h] = time
                            cut[i, j, h] = k
                            how[i, j, h] = way
    last = cuts - 1
    top = np.full((cuts, slots), NEVER, dtype=np.int64)
    following = np.full((cuts, slots), last, dtype=np.int16)
    top_way = np.full((cuts, slots), -1, dtype=np.int8)
    for i in range(last - 1, -1, -1):
        room = budget - crossing[i]
        for h in range(slots):
            top[i, h] = cost[i, last, h]
        for way in range(ways):
            fits = min(slots, (room - max(kept_peak[way, i, last], sweep_peak[way, i, last])) // unit + 1)
            for h in range(fits):
                if kept_time[way, i, last] < top[i, h]:
                    top[i, h] = kept_time[way, i, last]
                    top_way[i, h] = way
        for k in range(i + 1, last):
            for way in range(ways + 1):
                more = -(-(freed[i, k] + kept_bytes[way, i, k]) // unit)
                fits = min(slots - more, (room - sweep_peak[way, i, k]) // unit + 1)
                if way < ways:
                    fits = min(fits, (room - kept_peak[way, i, k]) // unit + 1)
                for h in range(fits):
                    rest = kept_time[way, i, k] if way < ways else cost[i, k, h]
                    if top[k, h + more] + rest < top[i, h]:
                        top[i, h] = top[k, h + more] + rest
                        following[i, h] = k
                        top_way[i, h] = way
    return cut, how, top, following, top_way
