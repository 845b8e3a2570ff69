"""The floor of a planner that searches: the choice of least peak that it finds, and so the least budget it meets."""

from __future__ import annotations

from collections.abc import Callable

from lowtide.planners.search import Choice, Search, Tried
from lowtide.planners.step import Step

Fitting = Callable[[int], list[Tried]]


def floor(step: Step, peak: int, fitting: Fitting, tries: int) -> Tried:
    """The least budget at which `fitting` finds something, and from there down as far as repairs go.

    `peak` is that of the plain step. A budget named as needed must do, and one byte less must not; so what `fitting`
    finds just below is taken, until it finds nothing. No budget is skipped on purpose, but `fitting` need not be
    monotone, and a lower budget at which it would find something may go unseen.
    """
    search = Search(step, peak, tries)
    best = search.attempt(Choice(frozenset(v for v, made in enumerate(step.forward) if made)))
    low, high = 0, best.seen.peak
    while high - low > max(1, peak // 128):
        middle = (low + high) // 2
        fits = fitting(middle)
        if fits:
            best = min(fits, key=lambda tried: tried.seen.peak)
            high = best.seen.peak
        else:
            low = middle
    while search.left > 0:
        search.budget = best.seen.peak - max(1, peak // 256)
        lower = search.repair(best)
        if lower.seen.peak >= best.seen.peak:
            break
        best = lower
    while best.seen.peak and (fits := _below(best.seen.peak, fitting)):
        best = min(fits, key=lambda tried: tried.seen.peak)
    return best


def _below(peak: int, fitting: Fitting) -> list[Tried]:
    """What is found just below a peak, or, since `fitting` may have gaps, a little or somewhat further below."""
    for budget in (peak - 1, peak * 99 // 100, peak * 97 // 100, peak * 93 // 100):
        if fits := fitting(budget):
            return fits
    return []
