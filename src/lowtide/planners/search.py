"""Local search: from one choice of what is kept and dropped to a better one, a value at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random

import numpy as np
from numpy.typing import NDArray

from lowtide.planners.moves import Reruns, Waits
from lowtide.planners.replay import Replay, replay
from lowtide.planners.rerun import expanded
from lowtide.planners.step import Step

Ints = NDArray[np.int64]
Wait = tuple[int, int, int]  # value, begin, end: see Waits


@dataclass(frozen=True, slots=True)
class Choice:
    """What is kept across the boundary, and what is dropped after which backward op (see `rerun.expand`)."""

    kept: frozenset[int]
    drops: frozenset[tuple[int, int]] = frozenset()

    @classmethod
    def of(cls, step: Step, runs: Sequence[int]) -> Choice:
        """The choice that keeps and drops what a sequence does; its own sequence may run an op later than that."""
        served: list[int] = []
        following = len(step.reads)
        for op in reversed(runs):
            following = op if op >= step.boundary else following
            served.append(following)
        served.reverse()
        begins = next((at for at, op in enumerate(runs) if op >= step.boundary), len(runs))
        last: dict[int, int] = {}
        kept: set[int] = set()
        drops: set[tuple[int, int]] = set()
        made_again: set[int] = set()
        for at, op in enumerate(runs):
            for v in step.reads[op]:
                if at >= begins and v not in made_again:
                    kept.add(v)
                last[v] = at
            for v in step.writes[op]:
                if v in last and last[v] >= begins and served[last[v]] < served[at]:
                    drops.add((served[last[v]], v))
                if at >= begins:
                    made_again.add(v)
                last[v] = at
        return cls(frozenset(v for v in kept if step.forward[v]), frozenset(drops))

    def runs(self, step: Step) -> Ints:
        """The sequence."""
        return expanded(step, self.kept, sorted(self.drops))


@dataclass(frozen=True, slots=True)
class Tried:
    """A choice with the sequence that comes of it and what that costs."""

    choice: Choice
    runs: Ints
    seen: Replay


class Search:
    """Tries choices for one step and budget; `left` tries remain before it settles for what it has."""

    def __init__(self, step: Step, budget: int, tries: int) -> None:
        self.step, self.budget, self.left = step, budget, tries
        self.size: list[int] = step.program.arrays.bytes.tolist()
        self.movable: list[bool] = step.flags.movable.tolist()
        self.worth = step.program.arrays.ns[step.program.arrays.writer] / np.maximum(1, step.program.arrays.bytes)

    def attempt(self, choice: Choice) -> Tried:
        """Replay a choice."""
        self.left -= 1
        runs = choice.runs(self.step)
        return Tried(choice, runs, replay(self.step.program, runs))

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
            for choice in self._drops_at(tried, waits[:width]):
                new = self._attempt_drop(choice, at, waiting, over)
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
        for i in undoings.order.tolist():
            name = undoings.name(i)
            if name in refused:
                continue
            if self.left <= 0:
                return None
            if all(self._room(tried, wait) >= self.size[wait[0]] for wait in undoings.wants(i)):
                new = self.attempt(undoings.choice(i))
                if self.fits(new) and new.seen.time < tried.seen.time:
                    return new
            refused.add(name)
        return None

    def wander(self, tried: Tried, seed: int = 0) -> Tried:
        """Hold a few values more, repair and polish, as long as tries are left; the best seen.

        A step is taken if it is hardly worse; the numbers drawn are the same every time.
        """
        random = Random(seed)
        best = here = tried
        while self.left > 0:
            away = [v for v, movable in enumerate(self.movable) if movable and v not in here.choice.kept]
            drops = sorted(here.choice.drops)
            if not away and not drops:
                break
            more = random.sample(away, min(random.randint(1, 4), len(away)))
            fewer = random.sample(drops, min(random.randint(0, 2), len(drops)))
            new = self.repair(self.attempt(Choice(here.choice.kept | set(more), here.choice.drops - set(fewer))))
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
        return int(np.maximum(tried.seen.timeline - self.budget, 0).sum())

    def _drops_at(self, tried: Tried, waits: list[Wait]) -> Iterator[Choice]:
        """The choices to drop one of these."""
        for wait in waits:
            choice = self._without(tried, wait, tried.choice)
            if choice is not None:
                yield choice

    def _attempt_drop(self, choice: Choice, at: int, waiting: set[int], over: int) -> Tried:
        """Try a drop; where what it is made from stays in its place, try to drop that as well."""
        new = self.attempt(choice)
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
        if begin < self._begin_of_backward(tried.runs):
            return Choice(choice.kept - {value}, choice.drops) if value in choice.kept else None
        after = begin
        while tried.runs[after] < self.step.boundary:
            after += 1
        # It goes after its last read before then, and so is away from `begin` on even where `after` comes later.
        return Choice(choice.kept, choice.drops | {(int(tried.runs[after]), value)}) if after < end else None

    def _begin_of_backward(self, runs: Ints) -> int:
        return int(np.argmax(runs >= self.step.boundary))

    def _room(self, tried: Tried, wait: Wait) -> int:
        """Bytes free all along a stretch."""
        stretch = tried.seen.timeline[wait[1] + 1 : wait[2]]
        return self.budget - int(stretch.max()) if stretch.size else self.budget


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
        for b, v in self.tried.choice.drops:
            dropped.setdefault(v, []).append(b)
        return dropped

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
        begins = int(np.argmax(self.is_backward))
        kept: set[int] = set()
        drops: set[tuple[int, int]] = set()
        for v, was, _ in self.wants(i):
            if was < begins:
                kept.add(v)
            if v in self._dropped:
                between = tried.runs[was:place]
                drops.update((b, v) for b in self._dropped[v] if (between == b).any())
        return Choice(tried.choice.kept | kept, tried.choice.drops - drops)
