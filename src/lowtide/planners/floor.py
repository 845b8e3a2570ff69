"""The floor of a planner that searches: the choice of least peak that it finds, and so the least budget it meets."""

from __future__ import annotations

from collections.abc import Callable

from lowtide.planners.choice import Choice, Tried
from lowtide.planners.search import Search
from lowtide.planners.step import Step
from lowtide.planners.working_set import WorkingSet

Fitting = Callable[[int], list[Tried]]


def floor(step: Step, fitting: Fitting, tries: int) -> Tried:
    """The least budget at which `fitting` finds something, and from there down as far as repairs go.

    A budget named as needed must do, and one byte less must not; so what `fitting` finds just below is taken, until it
    finds nothing. No budget is skipped on purpose, but `fitting` need not be monotone, and a lower budget at which it
    would find something may go unseen. Below the working set nothing is looked for (see `working_set.WorkingSet`).
    """
    least = WorkingSet.of(step).bytes
    search = Search(step, 0, tries)
    best = search.attempt(Choice.plain(step))
    low, high = least - 1, best.seen.peak
    while high - low > max(1, best.seen.peak // 128):
        middle = (low + high) // 2
        fits = fitting(middle)
        if fits:
            best = min(fits, key=lambda tried: tried.seen.peak)
            high = best.seen.peak
        else:
            low = middle
    best = sink(best, search, least)
    while best.seen.peak > least and (fits := fitting(best.seen.peak - 1)):
        lower = min(fits, key=lambda tried: tried.seen.peak)
        assert lower.seen.peak < best.seen.peak, "what is said to fit does not"
        best = lower
    return best


def sink(tried: Tried, search: Search, least: int) -> Tried:
    """Mend for a budget a little lower each time, until that fails or `least` is reached."""
    while search.left > 0 and tried.seen.peak > least:
        search.budget = max(least, min(tried.seen.peak - 1, tried.seen.peak * 255 // 256))
        lower = search.repair(tried)
        if lower.seen.peak >= tried.seen.peak:
            break
        tried = lower
    return tried
