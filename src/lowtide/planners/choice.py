"""Choice: what is kept and what is dropped when, and a try of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from lowtide.planners.replay import Replay, replay
from lowtide.planners.rerun import expanded
from lowtide.planners.step import Step

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
NO_DROPS: Ints = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """What is kept across the boundary, and what is dropped after which backward op (see `rerun.expand`).

    kept    per value, whether it is kept
    drops   the drops in order, each a number: `b * kept.size + v` drops value v after backward op b

    A choice is never changed: each method returns another.
    """

    kept: Bools
    drops: Ints

    @classmethod
    def keeping(cls, step: Step, values: Iterable[int], drops: Iterable[tuple[int, int]] = ()) -> Choice:
        """The choice that keeps these values, and drops v after op b for each pair (b, v)."""
        kept = np.zeros(len(step.writer), dtype=bool)
        kept[list(values)] = True
        return cls(kept, NO_DROPS).dropping(drops)

    @classmethod
    def plain(cls, step: Step) -> Choice:
        """The choice that keeps everything."""
        return cls(step.flags.forward, NO_DROPS)

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
        return cls.keeping(step, (v for v in kept if step.forward[v]), drops)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Choice):
            return NotImplemented
        return np.array_equal(self.kept, other.kept) and np.array_equal(self.drops, other.drops)

    def __hash__(self) -> int:
        return hash((self.kept.tobytes(), self.drops.tobytes()))

    def holding(self, values: Iterable[int], drops: Iterable[int] = ()) -> Choice:
        """The choice that keeps these values as well, without these of its drops."""
        kept = self.kept.copy()
        kept[list(values)] = True
        undone = np.fromiter(drops, np.int64)
        return Choice(kept, np.delete(self.drops, np.searchsorted(self.drops, undone)) if undone.size else self.drops)

    def without(self, value: int) -> Choice:
        """The choice that does not keep a value."""
        kept = self.kept.copy()
        kept[value] = False
        return Choice(kept, self.drops)

    def dropping(self, pairs: Iterable[tuple[int, int]]) -> Choice:
        """The choice that drops v after backward op b as well, for each pair (b, v)."""
        more = sorted({b * self.kept.size + v for b, v in pairs})
        return Choice(self.kept, _merged(self.drops, np.array(more, dtype=np.int64)))


@dataclass(frozen=True, slots=True)
class Tried:
    """A choice with the sequence that comes of it, what that costs, and the place at which backward begins."""

    choice: Choice
    runs: Ints
    begin: int
    seen: Replay

    @classmethod
    def of(cls, step: Step, choice: Choice) -> Tried:
        """Replay a choice."""
        runs, begin = expanded(step, choice.kept, choice.drops)
        return cls(choice, runs, begin, replay(step.program, runs))

    @classmethod
    def itself(cls, step: Step, runs: Ints) -> Tried:
        """Replay a sequence as it stands; its choice may put an op later than it does."""
        begin = int(np.argmax(runs >= step.boundary))
        return cls(Choice.of(step, runs.tolist()), runs, begin, replay(step.program, runs))

    @property
    def rank(self) -> tuple[int, int]:
        """Less is better: time, then peak."""
        return self.seen.time, self.seen.peak


@njit(cache=True)
def _merged(some: Ints, more: Ints) -> Ints:
    """The numbers of two rising lists, each once."""
    both = np.empty(some.size + more.size, dtype=np.int64)
    count, at = 0, 0
    for number in some:
        while at < more.size and more[at] < number:
            both[count] = more[at]
            count += 1
            at += 1
        if at < more.size and more[at] == number:
            at += 1
        both[count] = number
        count += 1
    for i in range(at, more.size):
        both[count] = more[i]
        count += 1
    return both[:count]
