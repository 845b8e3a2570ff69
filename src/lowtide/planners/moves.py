"""Moves: where in a sequence a value could be away that is there, and where it could be there that is not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from lowtide.planners.step import Step

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Waits:
    """Stretches of a sequence over which a movable value is there untouched, in the order in which they end.

    value   the value
    begin   place of the run that touches it last
    end     place of the run that reads it next
    """

    value: Ints
    begin: Ints
    end: Ints

    @classmethod
    def of(cls, step: Step, runs: Ints) -> Waits:
        """All of them."""
        arrays = step.program.arrays
        return cls(
            *_waits(
                runs,
                arrays.reads_start,
                arrays.reads,
                arrays.writes_start,
                arrays.writes,
                step.flags.movable,
            )
        )

    def across(self, place: int) -> Waits:
        """Those over this place."""
        over = (self.begin < place) & (place < self.end)
        return Waits(self.value[over], self.begin[over], self.end[over])


@dataclass(frozen=True, slots=True)
class Reruns:
    """The reruns of a sequence, and where values would have to be there instead.

    place   per rerun, its place in the sequence
    start   per rerun, where its wants start; one more at the end
    value   per want, a value that somebody reads of what the rerun writes
    begin   per want, the place at which it was there last
    """

    place: Ints
    start: Ints
    value: Ints
    begin: Ints

    @classmethod
    def of(cls, step: Step, runs: Ints) -> Reruns:
        """All reruns of forward ops."""
        arrays = step.program.arrays
        place, owner, value, begin = _reruns(
            runs,
            step.boundary,
            arrays.reads_start,
            arrays.reads,
            arrays.writes_start,
            arrays.writes,
            step.flags.movable,
        )
        order = np.argsort(owner, kind="stable")
        start = np.searchsorted(owner[order], np.arange(place.size + 1))
        return cls(place, start, value[order], begin[order])

    def rent(self, step: Step) -> Ints:
        """Per rerun, bytes times places that its wants would take."""
        lengths = np.repeat(self.place, np.diff(self.start)) - self.begin
        sums = np.zeros(self.value.size + 1, dtype=np.int64)
        np.cumsum(step.program.arrays.bytes[self.value] * lengths, out=sums[1:])
        rent: Ints = sums[self.start[1:]] - sums[self.start[:-1]]
        return rent


@njit(cache=True)
def _waits(
    runs: Ints, reads_start: Ints, reads: Ints, writes_start: Ints, writes: Ints, movable: Bools
) -> tuple[Ints, Ints, Ints]:
    total = 0
    for place in range(runs.size):
        total += reads_start[runs[place] + 1] - reads_start[runs[place]]
    value = np.empty(total, dtype=np.int64)
    begin = np.empty(total, dtype=np.int64)
    end = np.empty(total, dtype=np.int64)
    count = 0
    last = np.full(movable.size, -1, dtype=np.int64)
    for place in range(runs.size):
        op = runs[place]
        for at in range(reads_start[op], reads_start[op + 1]):
            v = reads[at]
            if movable[v]:
                if place - last[v] > 1:
                    value[count] = v
                    begin[count] = last[v]
                    end[count] = place
                    count += 1
                last[v] = place
        for at in range(writes_start[op], writes_start[op + 1]):
            last[writes[at]] = place
    return value[:count], begin[:count], end[:count]


@njit(cache=True)
def _reruns(
    runs: Ints,
    boundary: int,
    reads_start: Ints,
    reads: Ints,
    writes_start: Ints,
    writes: Ints,
    movable: Bools,
) -> tuple[Ints, Ints, Ints, Ints]:
    total = 0
    for place in range(runs.size):
        total += writes_start[runs[place] + 1] - writes_start[runs[place]]
    value = np.empty(total, dtype=np.int64)
    owner = np.empty(total, dtype=np.int64)
    begin = np.empty(total, dtype=np.int64)
    places = np.empty(runs.size, dtype=np.int64)
    count = 0
    again = 0
    ran = np.zeros(reads_start.size, dtype=np.bool_)
    last = np.full(movable.size, -1, dtype=np.int64)
    # Per value, the rerun that wrote it, until somebody reads it, and where it was there before.
    fresh = np.full(movable.size, -1, dtype=np.int64)
    before = np.zeros(movable.size, dtype=np.int64)
    for place in range(runs.size):
        op = runs[place]
        for at in range(reads_start[op], reads_start[op + 1]):
            v = reads[at]
            if fresh[v] >= 0:
                # A copy that nobody reads need not be there instead.
                value[count] = v
                owner[count] = fresh[v]
                begin[count] = before[v]
                count += 1
                fresh[v] = -1
            last[v] = place
        if op < boundary:
            if ran[op]:
                places[again] = place
                for at in range(writes_start[op], writes_start[op + 1]):
                    v = writes[at]
                    if movable[v]:
                        fresh[v] = again
                        before[v] = last[v]
                again += 1
            ran[op] = True
        for at in range(writes_start[op], writes_start[op + 1]):
            last[writes[at]] = place
    return places[:again], owner[:count], value[:count], begin[:count]
