"""priced: our own planner. What memory is worth at every moment of backward decides what is kept."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lowtide.errors import BudgetTooSmall
from lowtide.plan import Bound, Plan
from lowtide.planners.prices import Prices, Relaxed
from lowtide.planners.promise import every_op_once, promise, too_small
from lowtide.planners.replay import replay
from lowtide.planners.search import Choice, Search, Tried
from lowtide.planners.step import Step
from lowtide.program import Program

SEARCHED = "each backward op once in the program's order, reruns as late as possible; found at prices of memory"


def solve(program: Program, budget: int) -> Plan:
    """Least time."""
    step = Step.of(program)
    plain = range(len(program.ops))
    if not step.boundary or step.boundary == len(plain) or replay(program, plain).peak <= budget:
        if replay(program, plain).peak > budget:
            raise too_small(program, plain, budget, planner="priced")
        return promise(program, plain, budget, planner="priced", searched=SEARCHED)
    relaxed, least = narrowed(step, budget)
    tries = 500 + 2_000_000 // len(plain)
    search = Search(step, budget, tries)
    found = fitting(relaxed, search)
    if not found:
        raise BudgetTooSmall("", budget=budget, needed=0)
    best = min((search.polish(tried) for tried in found[:3]), key=lambda t: (t.seen.time, t.seen.peak))
    if len(plain) < 2000:
        search.left = min(search.left, 500)
        best = search.wander(best)
    return promise(program, best.runs.tolist(), budget, planner="priced", searched=SEARCHED, bound=least)


def narrowed(step: Step, budget: int, instants: int = 12) -> tuple[Relaxed, Bound]:
    """The relaxation that sees exactly the moments at which memory has a price, and what it proves.

    Which moments those are is only known once it is solved, so it is solved a few times.
    """
    seen: set[int] = set()
    least = every_op_once(step.program)
    relaxed = Relaxed.of(step)
    while (prices := relaxed.solve(budget)) is not None:
        proven = relaxed.bound(prices, budget)
        if proven.time > least.time:
            least = proven
        dearest = np.argsort(-prices.rent)[:instants]
        fresh = {int(t) for t in dearest if prices.rent[t] > 0} - seen - {0}
        if not fresh or len(seen) >= instants:
            break
        seen |= fresh
        relaxed = Relaxed.of(step, seen)
    return relaxed, least


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
    return Choice(frozenset(kept), frozenset(drops))


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
