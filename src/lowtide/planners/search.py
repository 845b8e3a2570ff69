"""Local search: from one choice of what is kept and dropped to a better one, a value at a time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from random import Random

import numpy as np
from numba import njit
from numpy.typing import NDArray

from lowtide.planners.choice import Choice, Tried
from lowtide.planners.front import Front
from lowtide.planners.moves import Reruns, Waits
from lowtide.planners.step import Step

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Wait = tuple[int, int, int]  # value, begin, end: see Waits


class Search:
    """Tries choices for one step and budget; `left` tries remain before it settles for what it has.

    What no other try beats in both peak and time is in `front`.
    """

    def __init__(self, step: Step, budget: int, tries: int) -> None:
        self.step, self.budget, self.left = step, budget, tries
        self.front = Front()
        self.movable: list[bool] = step.flags.movable.tolist()
        self.worth = step.program.arrays.ns[step.program.arrays.writer] / np.maximum(1, step.program.arrays.bytes)

    def attempt(self, choice: Choice) -> Tried:
        """Replay a choice."""
        self.left -= 1
        tried = Tried.of(self.step, choice)
        self.front.add(tried)
        return tried

    def fits(self, tried: Tried) -> bool:
        """Whether the peak is within the budget."""
        return tried.seen.peak <= self.budget

    def repair(self, tried: Tried, width: int = 40) -> Tried:
        """Drop what is cheapest for the bytes it frees, until the peak fits or nothing helps.

        Freed bytes are those above the budget, summed over the runs.
        """
        while not self.fits(tried) and self.left > 0:
            over = self._over(tried)
            best: tuple[float, Tried] | None = None
            at = tried.seen.at
            waits = self._waits_at(tried, at)
            waiting = {v for v, _, _ in waits}
            for wait in waits[:width]:
                for new in self._dropped(tried, wait, at, waiting, over):
                    freed = over - self._over(new)
                    if freed > 0:
                        price = (new.seen.time - tried.seen.time) / freed
                        if best is None or price < best[0]:
                            best = (price, new)
            if best is None:
                break
            tried = best[1]
        return tried

    def polish(self, tried: Tried) -> Tried:
        """Undo reruns that there is room for, most time saved per byte and run first, until none is left."""
        while self.left > 0:
            before = tried.seen.time
            refused: set[tuple[int, int]] = set()
            while (better := self._undo_one(tried, refused)) is not None:
                tried = better
            if tried.seen.time == before:
                break
        return tried

    def _undo_one(self, tried: Tried, refused: set[tuple[int, int]]) -> Tried | None:
        """The first undoing that helps; those that do not are added to `refused` and not tried again."""
        undoings = Undoings(self.step, tried)
        for i in undoings.with_room(self.budget):
            name = undoings.name(i)
            if name in refused:
                continue
            if self.left <= 0:
                return None
            new = self.attempt(undoings.choice(i))
            if self.fits(new) and new.seen.time < tried.seen.time:
                return new
            refused.add(name)
        return None

    def wander(self, tried: Tried, least: int = 0) -> Tried:
        """Hold a few values more, repair and polish, as long as tries are left; the best seen.

        It ends when the time is down to `least`, below which nothing is.

        A step is taken if it is hardly worse; the numbers drawn are the same every time.
        """
        random = Random(0)
        best = here = tried
        while self.left > 0 and best.seen.time > least:
            away = np.flatnonzero(self.step.flags.movable & ~here.choice.kept).tolist()
            drops = here.choice.drops.tolist()
            if not away and not drops:
                break
            more = random.sample(away, min(random.randint(1, 4), len(away)))
            fewer = random.sample(drops, min(random.randint(0, 2), len(drops)))
            new = self.repair(self.attempt(here.choice.holding(more, fewer)), 10)
            if not self.fits(new):
                continue
            new = self.polish(new)
            if new.seen.time <= here.seen.time * 1.001:
                here = new
            if (new.seen.time, new.seen.peak) < (best.seen.time, best.seen.peak):
                best = new
            elif random.random() < 0.05:
                here = best
        return best

    def _over(self, tried: Tried) -> int:
        beyond: int = _beyond(tried.seen.timeline, self.budget)
        return beyond

    def _dropped(self, tried: Tried, wait: Wait, at: int, waiting: set[int], over: int) -> Iterator[Tried]:
        """Ways to have a value away while run `at` runs."""
        choice = self._without(tried, wait, tried.choice)
        if choice is None:
            return
        new = self.attempt(choice)
        if self._over(new) >= over:
            passing = self._in_passing(tried, new, wait)
            if passing is not None and self.left > 0:
                yield self.attempt(passing)
            new = self._with_sources(new, at, waiting, over)
        yield new

    def _in_passing(self, old: Tried, new: Tried, wait: Wait) -> Choice | None:
        """The choice in which what is made only on the way to the value that was dropped is dropped at once."""
        value, begin, _ = wait
        step = self.step
        made = np.flatnonzero(new.runs == step.writer[value])
        made = made[made > begin]
        if not made.size:
            return None
        stops = np.flatnonzero(new.runs >= step.boundary)
        after = int(np.searchsorted(stops, made[0]))
        if not 0 < after < stops.size:
            return None
        b = int(new.runs[stops[after]])
        before = int(np.flatnonzero(old.runs == b)[0])
        first = before
        while first and old.runs[first - 1] < step.boundary:
            first -= 1
        usual = set(old.runs[first:before].tolist())
        fresh = (op for op in new.runs[stops[after - 1] + 1 : stops[after]].tolist() if op not in usual)
        return new.choice.dropping((b, v) for op in fresh for v in step.writes[op] if v != value and self.movable[v])

    def _with_sources(self, new: Tried, at: int, waiting: set[int], over: int) -> Tried:
        """Where what a dropped value is made from stays in its place, drop that as well."""
        for _ in range(8):
            if self._over(new) < over or self.left <= 0:
                break
            more: Choice | None = new.choice
            for wait in self._waits_at(new, at):
                if wait[0] not in waiting and more is not None:
                    more = self._without(new, wait, more)
            if more is None or more == new.choice:
                break
            new = self.attempt(more)
        return new

    def _waits_at(self, tried: Tried, at: int) -> list[Wait]:
        """What waits while run `at` runs, least time a byte first."""
        waits = Waits.of(self.step, tried.runs).across(at)
        order = np.argsort(self.worth[waits.value], kind="stable")
        order = order[self.step.program.arrays.bytes[waits.value[order]] > 0]
        return list(zip(waits.value[order].tolist(), waits.begin[order].tolist(), waits.end[order].tolist()))

    def _without(self, tried: Tried, wait: Wait, choice: Choice) -> Choice | None:
        """The choice with the value away over a stretch; None where it cannot be."""
        value, begin, end = wait
        if begin < tried.begin:
            return choice.without(value) if choice.kept[value] else None
        after = begin
        while tried.runs[after] < self.step.boundary:
            after += 1
        # It goes after its last read before then, and so is away from `begin` on even where `after` comes later.
        return choice.dropping([(int(tried.runs[after]), value)]) if after < end else None


class Undoings:
    """Every rerun of a try undone: `order` says which are best, most time saved per byte and run first."""

    def __init__(self, step: Step, tried: Tried) -> None:
        self.step, self.tried = step, tried
        self.reruns = Reruns.of(step, tried.runs)
        self.ops = tried.runs[self.reruns.place]
        self.is_backward = tried.runs >= step.boundary
        self.served = self.is_backward.cumsum()[self.reruns.place]
        gain = step.program.arrays.ns[self.ops] / (1 + self.reruns.rent(step))
        self.order = np.lexsort((self.served, self.ops, -gain))

    @cached_property
    def _dropped(self) -> dict[int, list[int]]:
        """Per value, after which backward ops it is dropped."""
        dropped: dict[int, list[int]] = {}
        after, value = np.divmod(self.tried.choice.drops, self.tried.choice.kept.size)
        for b, v in zip(after.tolist(), value.tolist()):
            dropped.setdefault(v, []).append(b)
        return dropped

    def with_room(self, budget: int) -> list[int]:
        """Those for which there is room all along the stretches over which values must be there instead."""
        reruns = self.reruns
        room = _room(
            self.tried.seen.timeline,
            budget,
            self.step.program.arrays.bytes,
            reruns.place,
            reruns.start,
            reruns.value,
            reruns.begin,
        )
        fits: list[int] = self.order[room[self.order]].tolist()
        return fits

    def name(self, i: int) -> tuple[int, int]:
        """The op and the moment it served."""
        return int(self.ops[i]), int(self.served[i])

    def wants(self, i: int) -> list[Wait]:
        """Where values must be there instead."""
        begin, end = self.reruns.start[i : i + 2].tolist()
        place = int(self.reruns.place[i])
        return [
            (v, was, place)
            for v, was in zip(self.reruns.value[begin:end].tolist(), self.reruns.begin[begin:end].tolist())
        ]

    def choice(self, i: int) -> Choice:
        """The choice without the rerun."""
        tried, place = self.tried, int(self.reruns.place[i])
        begins = tried.begin
        kept: set[int] = set()
        drops: set[int] = set()
        for v, was, _ in self.wants(i):
            if was < begins:
                kept.add(v)
            if v in self._dropped:
                between = tried.runs[was:place]
                count = tried.choice.kept.size
                drops.update(b * count + v for b in self._dropped[v] if (between == b).any())
        return tried.choice.holding(kept, drops)


@njit(cache=True)
def _beyond(timeline: Ints, budget: int) -> int:
    """Bytes above the budget, summed over the runs."""
    total = 0
    for held in timeline:
        total += max(0, held - budget)
    return total


@njit(cache=True)
def _room(timeline: Ints, budget: int, size: Ints, place: Ints, start: Ints, value: Ints, begin: Ints) -> Bools:
    """Per rerun (see `moves.Reruns`), whether each of its wants fits at every run after its begin and before it."""
    block = 64
    most = np.zeros(timeline.size // block + 1, dtype=np.int64)
    for at in range(timeline.size):
        most[at // block] = max(most[at // block], timeline[at])
    room = np.ones(place.size, dtype=np.bool_)
    for i in range(place.size):
        for want in range(start[i], start[i + 1]):
            free = budget - size[value[want]]
            at = begin[want] + 1
            while at < place[i]:
                if at % block == 0 and at + block <= place[i]:
                    held, at = most[at // block], at + block
                else:
                    held, at = timeline[at], at + 1
                if held > free:
                    room[i] = False
                    break
            if not room[i]:
                break
    return room
