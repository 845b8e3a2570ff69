"""Choice: what is kept and what is dropped when, and a try of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lowtide.planners.replay import Replay, replay
from lowtide.planners.rerun import expanded
from lowtide.planners.step import Step

Ints = NDArray[np.int64]


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

    @classmethod
    def of(cls, step: Step, choice: Choice) -> Tried:
        """Replay a choice."""
        runs = choice.runs(step)
        return cls(choice, runs, replay(step.program, runs))

    @classmethod
    def itself(cls, step: Step, runs: Ints) -> Tried:
        """Replay a sequence as it stands; its choice may put an op later than it does."""
        return cls(Choice.of(step, runs.tolist()), runs, replay(step.program, runs))

    @property
    def rank(self) -> tuple[int, int]:
        """Less is better: time, then peak."""
        return self.seen.time, self.seen.peak
