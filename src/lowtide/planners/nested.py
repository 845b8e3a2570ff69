"""nested: segments of segments, for budgets below what keeping and rerunning once can reach."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from lowtide.plan import Plan
from lowtide.planners import priced
from lowtide.planners.floor import floor
from lowtide.planners.promise import promise, too_small
from lowtide.planners.replay import replay
from lowtide.planners.search import Choice, Search, Tried
from lowtide.planners.step import Step
from lowtide.program import Program

NAME = "nested"
SEARCHED = "segments of segments of the forward pass, cut where few bytes cross, then mended and polished"
SLOTS = 128
CUTS = 28
NEVER = np.inf


def solve(program: Program, budget: int) -> Plan:
    """A fast plan whose peak is at most `budget` bytes, of those that rerun segments of segments.

    Positions 0 = p_0 < ... < p_K in the forward order cut it in segments; boundary(i) is what is made before p_i and
    read from p_i on, or by the backward ops that must wait for the ops from p_i on. C(i, j, h) is the least time to
    finish backward of the segment between p_i and p_j when boundary(i) and h more bytes are held:

        C(i, j, h) = min of  time to run the segment again and keep what its backward reads, if that fits
                             sweep(i, k) + C(k, j, h + bytes(boundary(i) - boundary(k))) + C(i, k, h), if the
                             sweep fits, for every i < k < j

    and at the top the sweeps are free, for they are the forward pass itself, and what is kept of its last segment
    is not run again. Cuts are at most 28, where few bytes cross, and h is rounded up to 128ths of the budget. The best
    sequence of this kind is then taken apart into what is kept and dropped, mended and polished (see `search.Search`).
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
    segments = Segments(step)
    tries = priced.tries(step)
    fits = _fitting(step, segments, budget)
    if not fits:
        lowest = floor(step, peak, lambda smaller: _fitting(step, segments, smaller), tries)
        if lowest.seen.peak > budget:
            raise too_small(program, lowest.runs.tolist(), budget, planner=NAME)
        fits = [lowest]
    search = Search(step, budget, tries)
    best = min((search.polish(tried) for tried in fits[:2]), key=lambda tried: (tried.seen.time, tried.seen.peak))
    _, least = priced.narrowed(step, budget)
    return promise(program, best.runs.tolist(), budget, planner=NAME, searched=SEARCHED, bound=least)


def _fitting(step: Step, segments: Segments, budget: int) -> list[Tried]:
    """What the recursion finds at this budget and a little below and above it, mended; fastest first."""
    search = Search(step, budget, priced.tries(step) // 2)
    fits = []
    for percent in (100, 96, 104, 110):
        runs = segments.plan(budget * percent // 100)
        if runs is None:
            continue
        choice = Choice.of(step, runs)
        itself = Tried(choice, np.array(runs, dtype=np.int64), replay(step.program, runs))
        fits += [tried for tried in (itself, search.repair(search.attempt(choice))) if search.fits(tried)]
    return sorted(fits, key=lambda tried: tried.seen.time)


@dataclass(frozen=True)
class Stretch:
    """Forward ops run in a row: their numbers, their time, and the most they hold meanwhile beyond what was there."""

    ops: tuple[int, ...]
    time: int
    peak: int


class Segments:
    """The cuts of a step, and what it takes to run between them."""

    def __init__(self, step: Step) -> None:
        self.step = step
        arrays = step.program.arrays
        self.size: list[int] = arrays.bytes.tolist()
        self.ns: list[int] = arrays.ns.tolist()
        self.scratch: list[int] = arrays.scratch.tolist()
        self.movable = [made and not f and not h for made, f, h in zip(step.forward, step.forced, step.held)]
        self.moments = len(step.reads) - step.boundary
        self.fixed, self.across = self._backward_bytes()
        self.waits = self._waits()
        self.cuts = self._cuts()
        self.boundary = [self._crossing(p) for p in self.cuts]
        self.bytes = [sum(self.size[v] for v in values) for values in self.boundary]
        last = len(self.cuts) - 1
        pairs = [(i, j) for i in range(last + 1) for j in range(i + 1, last + 1)]
        self.sweeps = {(i, j): self._sweep(i, j) for i, j in pairs if j < last}
        self.leaves = {(i, j): self._leaf(i, j, again=True) for i, j in pairs}
        self.kept = {i: self._leaf(i, last, again=False) for i in range(last)}

    def plan(self, budget: int) -> list[int] | None:
        """The sequence of least time, by the recursion; None where it finds that none fits."""
        table = _Table(self, budget)
        return table.runs()

    def backward(self, i: int, j: int) -> range:
        """The backward ops of the segment from cut i to cut j."""
        return range(self.step.boundary + self._moment(j), self.step.boundary + self._moment(i))

    def _moment(self, cut: int) -> int:
        return 0 if cut == len(self.cuts) - 1 else self.moments if cut == 0 else self.waits[self.cuts[cut]]

    def _waits(self) -> list[int]:
        """Per forward position, the first moment from which on backward reads nothing made there or later."""
        latest = [0] * (self.step.boundary + 1)
        for v, uses in enumerate(self.step.uses):
            if uses:
                op = self.step.writer[v]
                latest[op] = max(latest[op], uses[-1] - self.step.boundary + 1)
        return list(accumulate(reversed(latest), max))[::-1]

    def _backward_bytes(self) -> tuple[list[int], list[int]]:
        """What is there whatever is chosen, during each moment and across the instant before it."""
        step, outputs = self.step, self.step.program.arrays.output.tolist()
        during, across = [0] * (self.moments + 1), [0] * (self.moments + 1)
        last: dict[int, int] = {}
        for t, reads in enumerate(step.reads[step.boundary :]):
            last.update((v, t) for v in reads)
        for t, writes in enumerate(step.writes[step.boundary :]):
            for v in writes:
                end = self.moments - 1 if outputs[v] else last.get(v, t)
                for change, begin in ((during, t), (across, t + 1)):
                    change[begin] += self.size[v]
                    change[end + 1] -= self.size[v]
        always = sum(self.size[v] for v, there in enumerate(step.held) if there)
        always += sum(self.size[v] for v, there in enumerate(step.forced) if there and v in last)
        scratch = self.scratch[step.boundary :]
        return (
            [always + bytes + s for bytes, s in zip(accumulate(during), scratch)],
            [always + bytes for bytes in accumulate(across)],
        )

    def _cuts(self) -> list[int]:
        """The ends, and in each of equal windows of written bytes the position that fewest bytes cross."""
        step = self.step
        written = list(accumulate(1 + sum(self.size[v] for v in step.writes[op]) for op in range(step.boundary)))
        width = [0] * (step.boundary + 1)
        last = [step.writer[v] for v in range(len(self.size))]
        for op in range(step.boundary):
            for v in step.reads[op]:
                last[v] = op
        for v, movable in enumerate(self.movable):
            if movable:
                width[step.writer[v] + 1] += self.size[v]
                width[last[v] + 1] -= self.size[v]
        width = list(accumulate(width))
        best: dict[int, int] = {}
        for p in range(1, step.boundary):
            window = written[p - 1] * CUTS // (written[-1] + 1)
            if window not in best or width[p] < width[best[window]]:
                best[window] = p
        return sorted({0, step.boundary, *best.values()})

    def _crossing(self, position: int) -> frozenset[int]:
        step = self.step
        found: set[int] = set()
        for op in range(position, step.boundary):
            found.update(v for v in step.reads[op] if step.writer[v] < position)
        for b in range(step.boundary, step.boundary + (self.waits[position] if position else 0)):
            found.update(v for v in step.reads[b] if step.forward[v] and step.writer[v] < position)
        return frozenset(v for v in found if self.movable[v])

    def _needed(self, targets: set[int], begin: int) -> tuple[int, ...]:
        """The ops from `begin` on that make the targets, given all that is made before."""
        ops: set[int] = set()
        todo = list(targets)
        while todo:
            v = todo.pop()
            op = self.step.writer[v]
            if self.movable[v] and op >= begin and op not in ops:
                ops.add(op)
                todo.extend(self.step.reads[op])
        return tuple(sorted(ops))

    def _sweep(self, i: int, k: int) -> Stretch:
        targets = set(self.boundary[k] - self.boundary[i])
        ops = self._needed(targets, self.cuts[i])
        return Stretch(ops, sum(self.ns[op] for op in ops), self._peak(ops, targets, ()))

    def _leaf(self, i: int, j: int, *, again: bool) -> Stretch:
        backward = self.backward(i, j)
        targets = {
            v for b in backward for v in self.step.reads[b] if self.movable[v] and self.step.writer[v] >= self.cuts[i]
        }
        ops = self._needed(targets, self.cuts[i]) if again else ()
        peak = self._peak(ops, targets, backward)
        return Stretch(ops, sum(self.ns[op] for op in ops), peak)

    def _peak(self, ops: tuple[int, ...], targets: set[int], backward: range | tuple[()]) -> int:
        """The most that is held while `ops` and then `backward` run, beyond what was there; `targets` are held on."""
        step, size = self.step, self.size
        last: dict[int, int] = {}
        for at, op in enumerate(ops):
            last.update((v, at) for v in step.writes[op])
            last.update((v, at) for v in step.reads[op] if v in last)
        instant = self.across[backward[0] - step.boundary] if backward else 0
        ends: dict[int, list[int]] = {}
        for v, at in last.items():
            if v not in targets:
                ends.setdefault(at, []).append(v)
        there = 0 if ops else sum(size[v] for v in targets)
        peak = 0
        for at, op in enumerate(ops):
            there += sum(size[v] for v in step.writes[op])
            peak = max(peak, there + instant + self.scratch[op])
            there -= sum(size[v] for v in ends.get(at, ()))
        final = {v: b for b in backward for v in step.reads[b] if v in targets}
        gone: dict[int, list[int]] = {}
        for v, b in final.items():
            gone.setdefault(b, []).append(v)
        for b in backward:
            peak = max(peak, there + self.fixed[b - step.boundary])
            there -= sum(size[v] for v in gone.get(b, ()))
        return peak


class _Table:
    """The recursion at one budget."""

    def __init__(self, segments: Segments, budget: int) -> None:
        self.segments, self.budget = segments, budget
        self.unit = max(1, -(-budget // SLOTS))
        self.last = len(segments.cuts) - 1
        self.cost: dict[tuple[int, int], NDArray[np.float64]] = {}
        self.split: dict[tuple[int, int], NDArray[np.int64]] = {}
        for length in range(1, self.last + 1):
            for i in range(self.last - length + 1):
                self._fill(i, i + length)
        self.top: dict[int, NDArray[np.float64]] = {}
        self.next: dict[int, NDArray[np.int64]] = {}
        for i in range(self.last - 1, -1, -1):
            self._fill_top(i)

    def _allowed(self, i: int, peak: int) -> NDArray[np.bool_]:
        held = np.arange(SLOTS + 1) * self.unit
        allowed: NDArray[np.bool_] = held + self.segments.bytes[i] + peak <= self.budget
        return allowed

    def _shift(self, i: int, k: int) -> int:
        s = self.segments
        more = sum(s.size[v] for v in s.boundary[i] - s.boundary[k])
        return min(SLOTS + 1, -(-more // self.unit))

    @staticmethod
    def _shifted(cost: NDArray[np.float64], by: int) -> NDArray[np.float64]:
        return np.concatenate([cost[by:], np.full(by, NEVER)])

    def _fill(self, i: int, j: int) -> None:
        s = self.segments
        leaf = s.leaves[i, j]
        cost = np.where(self._allowed(i, leaf.peak), float(leaf.time), NEVER)
        split = np.full(SLOTS + 1, -1)
        instant = s.across[min(s._moment(j), s.moments)]
        for k in range(i + 1, j):
            sweep = s.sweeps[i, k]
            with_split = sweep.time + self._shifted(self.cost[k, j], self._shift(i, k)) + self.cost[i, k]
            better = (with_split < cost) & self._allowed(i, sweep.peak + instant)
            cost[better] = with_split[better]
            split[better] = k
        self.cost[i, j], self.split[i, j] = cost, split

    def _fill_top(self, i: int) -> None:
        cost = np.where(self._allowed(i, self.segments.kept[i].peak), 0.0, NEVER)
        following = np.full(SLOTS + 1, self.last)
        rerun = self.cost[i, self.last]
        cost, following = np.where(rerun < cost, rerun, cost), np.where(rerun < cost, -1, following)
        for k in range(i + 1, self.last):
            with_split = self._shifted(self.top[k], self._shift(i, k)) + self.cost[i, k]
            better = with_split < cost
            cost[better] = with_split[better]
            following[better] = k
        self.top[i], self.next[i] = cost, following

    def runs(self) -> list[int] | None:
        """The sequence; None where there is none."""
        if not self.top or self.top[0][0] == NEVER:
            return None
        runs = list(range(self.segments.step.boundary))
        self._emit_top(0, 0, runs)
        return runs

    def _emit_top(self, i: int, h: int, runs: list[int]) -> None:
        k = int(self.next[i][h])
        if k == self.last:
            runs += self.segments.backward(i, self.last)
        elif k < 0:
            self._emit(i, self.last, h, runs)
        else:
            self._emit_top(k, h + self._shift(i, k), runs)
            self._emit(i, k, h, runs)

    def _emit(self, i: int, j: int, h: int, runs: list[int]) -> None:
        k = int(self.split[i, j][h])
        if k < 0:
            runs += self.segments.leaves[i, j].ops
            runs += self.segments.backward(i, j)
            return
        runs += self.segments.sweeps[i, k].ops
        self._emit(k, j, h + self._shift(i, k), runs)
        self._emit(i, k, h, runs)
