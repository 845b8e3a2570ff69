"""Local search: from one choice of what is kept and dropped to a better one, a value at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from lowtide.planners.replay import Replay, replay
from lowtide.planners.rerun import NOTHING, expand
from lowtide.planners.step import Step


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

    def runs(self, step: Step) -> list[int]:
        """The sequence."""
        if not self.drops:
            return expand(step, self.kept, NOTHING)
        drops: dict[int, list[int]] = {}
        for b, v in self.drops:
            drops.setdefault(b, []).append(v)
        return expand(step, self.kept, drops)


@dataclass(frozen=True, slots=True)
class Tried:
    """A choice with the sequence that comes of it and what that costs."""

    choice: Choice
    runs: NDArray[np.int64]
    seen: Replay


@dataclass(frozen=True, slots=True)
class Wait:
    """A stretch of the sequence over which a value is there, or away, between two accesses of it.

    value   the value
    begin   place of the run that touches it last
    end     place of the run that touches it next
    """

    value: int
    begin: int
    end: int


class Search:
    """Tries choices for one step and budget; `left` tries remain before it settles for what it has."""

    def __init__(self, step: Step, budget: int, tries: int) -> None:
        self.step, self.budget, self.left = step, budget, tries
        self.size: list[int] = step.program.arrays.bytes.tolist()
        self.ns: list[int] = step.program.arrays.ns.tolist()
        self.movable = [
            made and not forced and not held for made, forced, held in zip(step.forward, step.forced, step.held)
        ]

    def attempt(self, choice: Choice) -> Tried:
        """Replay a choice."""
        self.left -= 1
        runs = np.array(choice.runs(self.step), dtype=np.int64)
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
            waiting = {w.value for w in self._waits_at(tried, at)}
            for choice in self._drops_at(tried, at, width):
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
        for name, choice, wants in self._undone(tried):
            if name in refused:
                continue
            if self.left <= 0:
                return None
            if all(self._room(tried, wait) >= self.size[wait.value] for wait in wants):
                new = self.attempt(choice)
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

    def _drops_at(self, tried: Tried, at: int, width: int) -> Iterator[Choice]:
        """The `width` most promising choices to drop one value that waits while run `at` runs."""
        waits = self._waits_at(tried, at)
        waits.sort(key=lambda w: self.ns[self.step.writer[w.value]] / self.size[w.value])
        for wait in waits[:width]:
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
                if wait.value not in waiting and more is not None:
                    more = self._without(new, wait, more)
            if more is None or more == new.choice:
                break
            new = self.attempt(more)
        return new

    def _waits_at(self, tried: Tried, at: int) -> list[Wait]:
        return [w for w in self._waits(tried.runs) if w.begin < at < w.end and self.size[w.value]]

    def _without(self, tried: Tried, wait: Wait, choice: Choice) -> Choice | None:
        """The choice with the value away over a stretch; None where it cannot be."""
        if wait.begin < self._begin_of_backward(tried.runs):
            return Choice(choice.kept - {wait.value}, choice.drops) if wait.value in choice.kept else None
        after = wait.begin
        while tried.runs[after] < self.step.boundary:
            after += 1
        # It goes after its last read before then, and so is away from `begin` on even where `after` comes later.
        return Choice(choice.kept, choice.drops | {(int(tried.runs[after]), wait.value)}) if after < wait.end else None

    def _waits(self, runs: NDArray[np.int64]) -> list[Wait]:
        """Stretches over which a movable value is there untouched."""
        last: dict[int, int] = {}
        waits = []
        reads, writes, movable = self.step.reads, self.step.writes, self.movable
        for at, op in enumerate(runs.tolist()):
            for v in reads[op]:
                if movable[v]:
                    if at - last[v] > 1:
                        waits.append(Wait(v, last[v], at))
                    last[v] = at
            for v in writes[op]:
                last[v] = at
        return waits

    def _begin_of_backward(self, runs: NDArray[np.int64]) -> int:
        return int(np.argmax(runs >= self.step.boundary))

    def _undone(self, tried: Tried) -> list[tuple[tuple[int, int], Choice, list[Wait]]]:
        """Every rerun undone, best first: the op and the moment it served, the choice without it, and where values
        must be there instead.
        """
        reads, writes, boundary = self.step.reads, self.step.writes, self.step.boundary
        runs = tried.runs.tolist()
        last: dict[int, int] = {}
        replaced: dict[int, tuple[int, int]] = {}
        waits: dict[int, list[Wait]] = {}
        place: dict[int, int] = {}
        for at, op in enumerate(runs):
            for v in reads[op]:
                if v in replaced:
                    # A copy that nobody reads need not be there instead.
                    rerun, before = replaced.pop(v)
                    waits[rerun].append(Wait(v, before, rerun))
                last[v] = at
            if op < boundary and op in place:
                waits[at] = []
                replaced.update((v, (at, last[v])) for v in writes[op] if self.movable[v])
            for v in writes[op]:
                last[v] = at
            place[op] = at
        begins = self._begin_of_backward(tried.runs)
        dropped: dict[int, list[int]] = {}
        for b, v in tried.choice.drops:
            dropped.setdefault(v, []).append(b)
        found = []
        for rerun, wants in waits.items():
            kept = tried.choice.kept | {w.value for w in wants if w.begin < begins}
            drops = tried.choice.drops - {
                (b, w.value) for w in wants for b in dropped.get(w.value, ()) if w.begin <= place[b] < rerun
            }
            rent = sum(self.size[w.value] * (rerun - w.begin) for w in wants)
            name = (runs[rerun], self.step.boundary + int((tried.runs[:rerun] >= boundary).sum()))
            found.append((-self.ns[runs[rerun]] / (1 + rent), name, Choice(kept, drops), wants))
        found.sort(key=lambda move: move[:2])
        return [move[1:] for move in found]

    def _room(self, tried: Tried, wait: Wait) -> int:
        """Bytes free all along a stretch."""
        stretch = tried.seen.timeline[wait.begin + 1 : wait.end]
        return self.budget - int(stretch.max()) if stretch.size else self.budget
