"""priced: our own planner. What memory is worth at every moment of backward decides what is kept."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lowtide.plan import Plan
from lowtide.planners.bound import narrowed
from lowtide.planners.choice import Choice, Tried
from lowtide.planners.floor import floor
from lowtide.planners.front import Front
from lowtide.planners.prices import Prices, Proof, Relaxed
from lowtide.planners.promise import promise, too_small
from lowtide.planners.replay import replay
from lowtide.planners.search import Search
from lowtide.planners.step import Step
from lowtide.program import Program

NAME = "priced"
SEARCHED = "each backward op once and in the program's order, each rerun as late as possible"


def solve(program: Program, budget: int) -> Plan:
    """A fast plan whose peak is at most `budget` bytes, and a bound that says how fast any could be.

    Minimised is the time of reruns, over the plans that run each backward op once and in the program's order and
    every rerun as late as possible. Memory has a price at each moment of backward, and what is worth keeping at
    those prices is kept (see `prices.Relaxed`): the prices are those at which that is also what fits, but for
    a few values that are kept in part. These are rounded. What the reruns themselves need meanwhile, the prices do not
    see: it is set aside, and the rounded choice is mended and polished by local search (see `search.Search`).

    The bound is proven, and holds over all plans with that order of backward ops, reruns repeated or not, wherever they
    stand. The plan is optimal where its gap is 0 and nothing is claimed elsewhere; a faster plan may run backward
    ops in another order. Below about one layer's memory beside one kept value a layer, `nested` reaches lower.
    Time: a few linear programs with O(n) choices each, and at most `tries` replays of O(n log n).
    """
    step = Step.of(program)
    plain = range(len(program.ops))
    peak = replay(program, plain).peak
    if peak <= budget:
        return promise(program, plain, budget, planner=NAME, searched=SEARCHED)
    if not step.boundary or step.boundary == len(plain):
        raise too_small(program, plain, budget, planner=NAME)
    found = look(step, budget)
    best = found.best
    if best is None:
        lowest = floor(step, lambda smaller: _fitting(step, smaller), tries(step))
        if lowest.seen.peak > budget:
            raise too_small(program, lowest.runs.tolist(), budget, planner=NAME)
        best = Search(step, budget, tries(step)).polish(lowest)
    return promise(program, best.runs.tolist(), budget, planner=NAME, searched=SEARCHED, bound=found.proof.at(budget))


@dataclass(frozen=True, slots=True)
class Found:
    """What prices lead to at one budget.

    best    the fastest try that fits, or None
    front   all tries that none beats in peak and time
    proof   what the prices prove
    dear    moments at which memory has a price
    """

    best: Tried | None
    front: Front
    proof: Proof
    dear: tuple[int, ...]


def look(step: Step, budget: int, dear: Collection[int] = ()) -> Found:
    """Solve for prices, round, mend, polish and wander; `dear` are moments known to have a price nearby."""
    relaxed, proof = narrowed(step, budget, dear)
    search = Search(step, budget, tries(step))
    polished = [search.polish(tried) for tried in fitting(relaxed, search)[:3]]
    best = min(polished, key=lambda tried: tried.rank, default=None)
    if best is not None:
        search.left = tries(step) // 4
        best = search.wander(best, proof.at(budget).time)
    return Found(best, search.front, proof, relaxed.instants)


def tries(step: Step) -> int:
    """How many replays a search may take: a fraction of a second's worth, and less for a small step."""
    return min(20 * len(step.reads), 600 + 400_000 // len(step.reads))


def _fitting(step: Step, budget: int) -> list[Tried]:
    relaxed, _ = narrowed(step, budget)
    return fitting(relaxed, Search(step, budget, tries(step)))


def fitting(relaxed: Relaxed, search: Search, rounds: int = 10) -> list[Tried]:
    """Choices that fit, fastest first.

    The relaxation does not see the moments of the reruns themselves. What a try holds there beyond what was reckoned
    is set aside at that moment in the next round, and where that is not enough, more and more everywhere.
    """
    step, budget = relaxed.step, search.budget
    margin = np.zeros(len(relaxed.fixed))
    spare = 0
    fits: list[Tried] = []
    over: list[Tried] = []
    seen: set[Choice] = set()
    for i in range(rounds):
        prices = relaxed.solve(budget, margin + spare)
        if prices is None:
            if not spare:
                break
            spare //= 2
            margin *= 0.9
            continue
        choices = {rounded(relaxed, prices, part) for part in (0.5, 0.02)} - seen
        tries = [search.attempt(choice) for choice in choices]
        seen |= choices
        fits += [tried for tried in tries if search.fits(tried)]
        over += [tried for tried in tries if not search.fits(tried)]
        if fits:
            break
        if not tries:
            spare = 2 * spare + budget // 1000
            continue
        tried = min(tries, key=lambda t: t.seen.peak)
        peaks = np.zeros(margin.size)
        np.maximum.at(peaks, moments_of(step, tried.runs), tried.seen.timeline)
        margin = np.maximum(peaks - modelled(relaxed, prices.x), 0)
        if i >= 2:
            spare = max(2 * spare, tried.seen.peak - budget)
    for tried in sorted(over, key=lambda t: t.seen.peak)[:6]:
        mended = search.repair(tried)
        if search.fits(mended):
            fits.append(mended)
    return sorted(fits, key=lambda t: t.seen.time)


def rounded(relaxed: Relaxed, prices: Prices, part: float = 0.5) -> Choice:
    """The choice that does in whole what the prices do in at least this part."""
    step = relaxed.step
    x = prices.x
    kept = {v for op in range(step.boundary) if x[op] < part for v in step.writes[op]}
    drops: set[tuple[int, int]] = set()
    for gap in relaxed.gaps:
        if gap.choice is None:
            kept.add(gap.value)
        elif gap.before < step.boundary:
            (kept.discard if x[gap.choice] >= part else kept.add)(gap.value)
        elif gap.choice != step.writer[gap.value] and x[gap.choice] >= part:
            drops.add((gap.before, gap.value))
    return Choice.keeping(step, kept, drops)


def modelled(relaxed: Relaxed, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Bytes at every moment that the relaxation reckons for the choices x."""
    change = np.zeros(len(relaxed.fixed) + 1)
    for c in relaxed.charges:
        change[c.begin] += c.bytes * x[c.choice]
        change[c.end] -= c.bytes * x[c.choice]
    reckoned: NDArray[np.float64] = change.cumsum()[:-1] + np.array(relaxed.fixed)
    return reckoned


def moments_of(step: Step, runs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Per run, the backward moment it serves."""
    moment = np.zeros(runs.size, dtype=np.int64)
    moment[1:] = (runs >= step.boundary).cumsum()[:-1]
    return np.minimum(moment, len(step.reads) - step.boundary - 1)
