"""priced: our own planner. What memory is worth at every moment decides what is kept."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lowtide.planners.prices import Prices, Relaxed
from lowtide.planners.replay import Replay, replay
from lowtide.planners.rerun import expand
from lowtide.planners.step import Step


@dataclass
class Choice:
    """What is kept across the boundary, and what is dropped after which backward op (see `rerun.expand`)."""

    kept: set[int]
    drops: dict[int, set[int]] = field(default_factory=dict)

    def copy(self) -> Choice:
        return Choice(set(self.kept), {b: set(vs) for b, vs in self.drops.items()})


@dataclass
class Tried:
    choice: Choice
    runs: NDArray[np.int64]
    seen: Replay


def attempt(step: Step, choice: Choice) -> Tried:
    runs = np.array(expand(step, choice.kept, choice.drops), dtype=np.int64)
    return Tried(choice, runs, replay(step.program, runs))


def rounded(relaxed: Relaxed, prices: Prices, at: float = 0.5) -> Choice:
    step = relaxed.step
    boundary = step.boundary
    x = prices.x
    kept = {v for op in range(boundary) if x[op] < at for v in step.writes[op]}
    drops: dict[int, set[int]] = {}
    for gap in relaxed.gaps:
        if gap.choice is None:
            kept.add(gap.value)
        elif gap.before < boundary:
            (kept.discard if x[gap.choice] >= at else kept.add)(gap.value)
        elif gap.choice != step.writer[gap.value] and x[gap.choice] >= at:
            drops.setdefault(gap.before, set()).add(gap.value)
    return Choice(kept, drops)


def modelled(relaxed: Relaxed, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Bytes at every moment that the relaxation reckons for the choices x."""
    change = np.zeros(len(relaxed.fixed) + 1)
    for c in relaxed.charges:
        change[c.begin] += c.bytes * x[c.choice]
        change[c.end] -= c.bytes * x[c.choice]
    return change.cumsum()[:-1] + np.array(relaxed.fixed)


def moments_of(step: Step, runs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Per run, the backward moment it serves."""
    backward = runs >= step.boundary
    moment = np.zeros(runs.size, dtype=np.int64)
    moment[1:] = backward.cumsum()[:-1]
    return np.minimum(moment, len(step.reads) - step.boundary - 1)


def first_try(relaxed: Relaxed, budget: int, rounds: int = 8, log=None) -> list[Tried]:
    step = relaxed.step
    margin = np.zeros(len(relaxed.fixed))
    out = []
    for i in range(rounds):
        prices = relaxed.solve(budget, margin)
        if prices is None:
            margin *= 0.7
            continue
        tried = attempt(step, rounded(relaxed, prices))
        out.append(tried)
        if log is not None:
            log.append((i, prices.extra, tried.seen.time, tried.seen.peak))
        peaks = np.zeros(margin.size)
        np.maximum.at(peaks, moments_of(step, tried.runs), tried.seen.timeline)
        extra = np.maximum(peaks - modelled(relaxed, prices.x), 0)
        if tried.seen.peak <= budget:
            break
        margin = extra if i < 3 else np.maximum(extra, margin)
    return out


class Search:
    """Local search over choices."""

    def __init__(self, step: Step, budget: int) -> None:
        self.step, self.budget = step, budget
        self.size = step.program.arrays.bytes
        self.ns = step.program.arrays.ns
        self.tries = 0
        n = len(step.writer)
        self.movable = [f and not forced and not held for f, forced, held in zip(step.forward, step.forced, step.held)]

    def attempt(self, choice: Choice) -> Tried:
        self.tries += 1
        return attempt(self.step, choice)

    def spans(self, runs: NDArray[np.int64]) -> list[tuple[int, int, int]]:
        """(value, from, to): stretches between two accesses, over which a movable value waits."""
        last: dict[int, int] = {}
        out = []
        reads, writes = self.step.reads, self.step.writes
        movable = self.movable
        for at, op in enumerate(runs.tolist()):
            for v in reads[op]:
                if movable[v]:
                    if at - last[v] > 1:
                        out.append((v, last[v], at))
                    last[v] = at
            for v in writes[op]:
                last[v] = at
        return out

    def excess(self, seen: Replay) -> int:
        return int(np.maximum(seen.timeline - self.budget, 0).sum())

    def dropped(self, tried: Tried, span: tuple[int, int, int]) -> Choice | None:
        v, begin, end = span
        runs, boundary = tried.runs, self.step.boundary
        served = begin
        while served < runs.size and runs[served] < boundary:
            served += 1
        choice = tried.choice.copy()
        b = int(runs[served]) if served < runs.size else -1
        if begin < self.first_backward(runs):
            if v not in choice.kept:
                return None
            choice.kept.discard(v)
        else:
            if served >= end:
                return None
            choice.drops.setdefault(b, set()).add(v)
        return choice

    def first_backward(self, runs: NDArray[np.int64]) -> int:
        return int(np.argmax(runs >= self.step.boundary)) if self.step.boundary < len(self.step.reads) else runs.size

    def repair(self, tried: Tried, width: int = 40) -> Tried:
        """Drop what is cheapest for the bytes it frees, until the peak fits or nothing helps."""
        while tried.seen.peak > self.budget:
            at = tried.seen.at
            area = self.excess(tried.seen)
            spans = [s for s in self.spans(tried.runs) if s[1] < at < s[2] and self.size[s[0]]]
            spans.sort(key=lambda s: self.ns[self.step.writer[s[0]]] / self.size[s[0]])
            best = None
            for span in spans[:width]:
                choice = self.dropped(tried, span)
                if choice is None:
                    continue
                new = self.attempt(choice)
                gain = area - self.excess(new.seen)
                if gain <= 0:
                    continue
                score = (new.seen.time - tried.seen.time) / gain
                if best is None or score < best[0]:
                    best = (score, new)
            if best is None:
                return tried
            tried = best[1]
        return tried

    def polish(self, tried: Tried) -> Tried:
        """Hold again what fits, most time saved per byte-moment first."""
        while True:
            better = self.polish_once(tried)
            if better.seen.time >= tried.seen.time:
                return tried
            tried = better

    def polish_once(self, tried: Tried) -> Tried:
        moves: list[tuple[float, int, int | None]] = []
        counts = np.bincount(tried.runs, minlength=len(self.step.reads))
        for op in range(self.step.boundary):
            if counts[op] > 1:
                for v in self.step.writes[op]:
                    if self.movable[v] and v not in tried.choice.kept:
                        moves.append((self.ns[op] / max(1, self.size[v]), v, None))
        for b, vs in tried.choice.drops.items():
            for v in vs:
                moves.append((self.ns[self.step.writer[v]] / max(1, self.size[v]), v, b))
        moves.sort(key=lambda m: -m[0])
        for _, v, b in moves:
            choice = tried.choice.copy()
            if b is None:
                if v in choice.kept:
                    continue
                choice.kept.add(v)
            else:
                choice.drops[b].discard(v)
            new = self.attempt(choice)
            if new.seen.peak <= self.budget and new.seen.time < tried.seen.time:
                tried = new
        return tried
