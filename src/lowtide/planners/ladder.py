"""Ladder: budgets from nothing to the plain step's peak, halved again and again, and what is found at each."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from lowtide.planners import nested, priced
from lowtide.planners.bound import narrowed
from lowtide.planners.choice import Choice, Tried
from lowtide.planners.floor import floor, sink
from lowtide.planners.front import Front
from lowtide.planners.prices import Proof
from lowtide.planners.search import Search
from lowtide.planners.segments import Segments
from lowtide.planners.step import Step
from lowtide.planners.working_set import WorkingSet

SINKING = 15_000  # tries to bring the lowest peak down
SHORT = 300  # ops of a step for which time is no concern
ABOVE = (5, 10, 20, 40)  # thousandths above the lowest peak at which a lower one is looked for
NEAR = 1.5  # times the working set: budgets at which the lowest of a longer step is worth its while
WIDE = 0.003  # of the plain step's time: a gap at which segments of segments are looked at too


@dataclass
class Rung:
    """What is found at one budget.

    best    the try that stands for it; None where nothing fits
    proof   what prices prove; None where they were not asked for
    front   all that may serve budgets nearby
    dear    moments at which memory has a price there
    """

    best: Tried | None
    proof: Proof | None = None
    front: Front = field(default_factory=Front)
    dear: frozenset[int] = frozenset()


@dataclass
class Neighbours:
    """What stands around a budget: the rungs below and above it, and what was found on the way to them.

    left, right   what stands for the rung below, None where nothing fits there, and for the rung above
    fronts        tries that may serve the budget
    proofs        what is proven of budgets nearby
    dear          moments at which memory has a price at the rung above
    """

    left: Tried | None
    right: Tried
    fronts: list[Front] = field(default_factory=list)
    proofs: list[Proof] = field(default_factory=list)
    dear: frozenset[int] = frozenset()

    def take(self, rung: Rung) -> None:
        """Take in what was found at a rung on the way."""
        self.fronts.append(rung.front)
        if rung.proof is not None:
            self.proofs.append(rung.proof)


@dataclass(frozen=True, slots=True)
class Answer:
    """A try that serves a budget, and a proof of how fast any could be there."""

    tried: Tried
    proof: Proof


class Ladder:
    """Fast plans for one step at any budget, such that more bytes are never slower and fewer never hold more.

    Searches are not monotone: one at a larger budget may end with a slower plan. So budgets are halved from the plain
    step's peak down to the one that is asked for. What is found at a rung stands for it once and for all, and bounds
    what may be used between it and the next: nothing faster than what the rung above has, or slower than the rung
    below; nor with a higher peak than the one, or a lower peak than the other. Two budgets with a rung between them
    so compare as they should. Between two neighbouring rungs at the foot, each budget has a search of its own.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self.plain = Tried.of(step, Choice.plain(step))
        self.tries = priced.tries(step)
        self.rungs: dict[int, Rung] = {}

    @property
    def levels(self) -> int:
        """How often budgets are halved."""
        ops = len(self.step.reads)
        return 6 if ops <= 6000 else 4 if ops <= 12_000 else 2

    @cached_property
    def segments(self) -> Segments:
        """The step's segments."""
        return nested.segmented(self.step)

    @cached_property
    def working_set(self) -> WorkingSet:
        """The bytes that no plan can do without."""
        return WorkingSet.of(self.step)

    @cached_property
    def lowest(self) -> Tried:
        """The fastest found of the least peak found."""
        least = self.working_set.bytes
        best = floor(self.step, self._nested, SINKING)
        while best.seen.peak > least and (lower := self._lower(best)) is not None:
            best = lower
        while True:
            search = Search(self.step, best.seen.peak, self.tries)
            search.wander(search.polish(best))
            best = search.front.fastest(best.seen.peak) or best
            lower = sink(best, Search(self.step, 0, SINKING), least)
            if lower.seen.peak == best.seen.peak:
                return best
            best = lower

    def _lower(self, tried: Tried) -> Tried | None:
        """A try with a lower peak, or None where none is found.

        What segments of segments reckon is somewhat more than what they hold: where nothing is found for less than
        the peak, what is found for a little more may still hold less.
        """
        peak = tried.seen.peak
        for budget in (peak - 1, *(peak + peak * share // 1000 for share in ABOVE)):
            search = Search(self.step, budget, self.tries)
            fits = nested.fitting(self.segments, search)
            if budget < peak and len(self.step.reads) <= SHORT:
                fits += priced.fitting(narrowed(self.step, budget)[0], search)
            lowest = min(fits, key=lambda fit: fit.seen.peak, default=tried)
            if lowest.seen.peak < peak:
                return lowest
        return None

    def fastest(self, budget: int) -> Answer | None:
        """The fastest try whose peak is at most `budget`; None where not even the lowest is."""
        if self._is_below_all(budget):
            return None
        around = self._neighbours(budget, self.levels)
        if around is None or around.left is None:
            if self.lowest.seen.peak > budget:
                return None
            if around is None:
                return self._answer(self.lowest, budget, [])
            around.left = self.lowest
        if around.left.seen.time > around.right.seen.time:
            around.dear = frozenset()
            around.proofs.clear()
            around.take(self._rung(budget, around))
            segmented = nested.look(self.segments, budget)
            if segmented is not None:
                around.fronts.append(Front([segmented]))
        tried = _chosen(budget, around)
        return None if tried is None else self._answer(tried, budget, around.proofs)

    def _answer(self, tried: Tried, budget: int, proofs: list[Proof]) -> Answer:
        """With what proves most at the budget; where there is nothing to choose from, with a proof made for it."""
        proofs = proofs or [narrowed(self.step, budget)[1]]
        return Answer(tried, max(proofs, key=lambda proof: proof.extra(budget)))

    def _is_below_all(self, budget: int) -> bool:
        """Whether a budget is below the lowest, which of a long step is sought only near the working set."""
        least = self.working_set.bytes
        near = budget < NEAR * least or len(self.step.reads) <= SHORT
        return budget < least or (near and budget < self.lowest.seen.peak)

    def _nested(self, budget: int) -> list[Tried]:
        runs = nested.Table.of(self.segments, budget).runs()
        if runs is None:
            return []
        tried = Tried.itself(self.step, runs)
        return [tried] if tried.seen.peak <= budget else []

    def curve(self, points: int) -> list[Answer]:
        """The fastest tries found from the least budget to the plain step's peak, by rising peak; at most `points`.

        At most as many rungs are searched as there are points; between them serves what was found there.
        """
        least, most = self.lowest.seen.peak, self.plain.seen.peak
        level = 0
        while level < self.levels and 2 * (most - least) * 2**level < points * most:
            level += 1
        found = Front([self.lowest, self.plain])
        proofs = [narrowed(self.step, least)[1]]
        for point in range(1, points - 1):
            budget = least + (most - least) * point // (points - 1)
            around = self._neighbours(budget, level)
            if around is not None:
                proofs += around.proofs
                tried = _chosen(budget, around)
                if tried is not None:
                    found.add(tried)
        proofs = list(dict.fromkeys(proofs))
        return [self._answer(tried, tried.seen.peak, proofs) for tried in found]

    def _neighbours(self, budget: int, levels: int) -> Neighbours | None:
        """The rungs next to a budget, `levels` down; None where at a rung above it nothing fits."""
        low, high = 0, self.plain.seen.peak
        around = Neighbours(None, self.plain)
        for _ in range(levels):
            middle = (low + high) // 2
            if middle == low or (around.left is not None and around.left.seen.time == around.right.seen.time):
                break
            if middle not in self.rungs:
                self.rungs[middle] = self._rung(middle, around)
            rung = self.rungs[middle]
            around.take(rung)
            if budget >= middle:
                low, around.left = middle, rung.best
            elif rung.best is None:
                return None
            else:
                high, around.right, around.dear = middle, rung.best, rung.dear
        return around

    def _rung(self, budget: int, around: Neighbours) -> Rung:
        """Search at a budget between two rungs, beginning with what was dear above."""
        if self._is_below_all(budget):
            return Rung(None)
        if around.right.seen.peak <= budget:
            return Rung(around.right)
        priced_here = priced.look(self.step, budget, around.dear)
        front, bound = priced_here.front, priced_here.proof.at(budget)
        wide = bound.time + WIDE * self.plain.seen.time
        search = Search(self.step, budget, self.tries // 2)
        starts = [around.left, search.repair(around.right)]
        if priced_here.best is None or priced_here.best.seen.time > wide:
            # Rounding is a matter of luck here: what is best somewhat below may come out ahead.
            starts.append(priced.look(self.step, budget - budget // 64, around.dear).best)
            starts.append(nested.look(self.segments, budget))
            search.left = 2 * self.tries
        polished = [search.polish(tried) for tried in starts if tried is not None and search.fits(tried)]
        for tried in polished:
            front.add(tried)
        best = front.fastest(budget)
        if best is not None and best is not priced_here.best:
            search.left = 2 * self.tries if best.seen.time > wide else self.tries // 4
            search.wander(best, bound.time)
        for tried in search.front:
            front.add(tried)
        chosen = _chosen(budget, Neighbours(around.left, around.right, [front]))
        return Rung(chosen, priced_here.proof, front, frozenset(priced_here.dear))


def _chosen(budget: int, around: Neighbours) -> Tried | None:
    """The fastest of some tries that fits, within what the rungs on both sides allow."""
    left, right = around.left, around.right
    if right.seen.peak <= budget:
        return right
    best = left
    for front in around.fronts:
        for tried in front:
            if (
                tried.seen.peak <= budget
                and tried.seen.time >= right.seen.time
                and (left is None or tried.seen.peak >= left.seen.peak)
                and (best is None or tried.rank < best.rank)
            ):
                best = tried
    return best
