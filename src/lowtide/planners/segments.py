"""Segments: a step cut at places in its forward pass, and what it takes to run between two cuts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from lowtide.planners.step import Step

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
NOWHERE = -1
SMALL = 1000


@dataclass(frozen=True)
class Cuts:
    """A Step cut before the forward ops `places`, the first of which is 0 and the last the boundary.

    moment    per cut, the first moment of backward from which on nothing is read that is made from the cut on; the
              backward ops of the segment from cut i to cut j are those from moment[j] to moment[i]
    until     per value, the last cut that it crosses: it is made before, and read by what comes from there on, or by
              backward ops that must wait for that; NOWHERE where it crosses none, or is there at no choice
    origin    per value, the first cut after it is made; the number of cuts where it is never counted
    crossing  per cut, the bytes that cross it
    movable   per value, whether there is a choice, but for values so small that they are kept in any case
    during    per moment, bytes that are there whatever is chosen, with the scratch of the backward op
    across    per moment, bytes that are there whatever is chosen in the instant before it; one more at the end
    """

    step: Step
    places: Ints
    moment: Ints
    until: Ints
    origin: Ints
    crossing: Ints
    movable: Bools
    during: Ints
    across: Ints

    @classmethod
    def of(cls, step: Step, most: int) -> Cuts:
        """The ends, and in each of `most` windows of equal written bytes the place that fewest bytes cross."""
        movable = step.flags.movable & ~_small(step)
        places = _places(step, most, movable)
        moments = len(step.reads) - step.boundary
        moment = _last_moments(step)[places]
        moment[0], moment[-1] = moments, 0
        until, origin = _reaches(step, places, moment, movable)
        size = step.program.arrays.bytes
        change = np.zeros(places.size + 1, dtype=np.int64)
        crosses = until >= origin
        np.add.at(change, origin[crosses], size[crosses])
        np.subtract.at(change, until[crosses] + 1, size[crosses])
        during, across = _backward_bytes(step)
        small = int(size[step.flags.movable & ~movable].sum())
        return cls(step, places, moment, until, origin, change.cumsum()[:-1], movable, during + small, across + small)


@dataclass(frozen=True)
class Segments:
    """What it takes to run the segments between cuts in some ways.

    A way says which of the values that backward reads are kept when a segment has been run forward; the others are
    made again one by one, each just before it is read. Arrays are by way, first cut and last cut; times are
    nanoseconds, and peaks count what is made in the segment and what is there whatever is chosen.

    keeps        per way and value, whether it is kept
    sweep_time   to run forward, and hold what crosses the last cut and what the way keeps
    sweep_peak   the most that is there meanwhile, backward's own bytes not counted
    kept_bytes   what the way keeps and does not cross the last cut
    kept_time    for the backward ops of the segment, with what they make again, given what the way keeps
    kept_peak    the most that is there meanwhile
    again_time   for the same, given nothing but what crosses the first cut
    again_peak   the most that is there meanwhile
    freed        by first cut and last cut, bytes that cross the first but not the last
    """

    cuts: Cuts
    keeps: Bools
    sweep_time: Ints
    sweep_peak: Ints
    kept_bytes: Ints
    kept_time: Ints
    kept_peak: Ints
    again_time: Ints
    again_peak: Ints
    freed: Ints

    @classmethod
    def of(cls, cuts: Cuts, keeps: Sequence[Bools]) -> Segments:
        """All segments in all ways."""
        masks = np.array(keeps, dtype=bool).reshape(len(keeps), -1)
        step, arrays = cuts.step, cuts.step.program.arrays
        sweep_time, sweep_peak, kept_bytes, kept_time, kept_peak, again_time, again_peak = _costs(
            masks,
            cuts.places,
            cuts.moment,
            cuts.until,
            cuts.origin,
            cuts.during,
            cuts.across,
            step.boundary,
            arrays.reads_start,
            arrays.reads,
            arrays.writes_start,
            arrays.writes,
            arrays.writer,
            arrays.bytes,
            arrays.ns,
            arrays.scratch,
            step.flags.used,
            cuts.movable,
        )
        return cls(
            cuts,
            masks,
            sweep_time,
            sweep_peak,
            kept_bytes,
            kept_time,
            kept_peak,
            again_time,
            again_peak,
            _freed(cuts),
        )

    def swept(self, way: int, i: int, k: int) -> Ints:
        """The runs of a sweep from cut i to cut k; way NOWHERE keeps nothing but what crosses."""
        mask = self.keeps[way] if way >= 0 else np.zeros(self.keeps.shape[1], dtype=bool)
        cuts, step, arrays = self.cuts, self.cuts.step, self.cuts.step.program.arrays
        runs = np.empty(len(step.reads), dtype=np.int64)
        needed = np.zeros(step.boundary + 1, dtype=np.bool_)
        count = _sweep(
            runs,
            needed,
            mask,
            i,
            k,
            cuts.places,
            cuts.until,
            cuts.origin,
            arrays.reads_start,
            arrays.reads,
            arrays.writes_start,
            arrays.writes,
            arrays.writer,
            step.flags.used,
            cuts.movable,
        )
        return runs[:count]

    def served(self, way: int, i: int, j: int, *, again: bool) -> Ints:
        """The runs of the backward ops between cuts i and j and of what they make again."""
        cuts, step, arrays = self.cuts, self.cuts.step, self.cuts.step.program.arrays
        runs = np.empty(len(step.reads) + step.boundary, dtype=np.int64)
        needed = np.zeros(step.boundary + 1, dtype=np.bool_)
        there = np.zeros(self.keeps.shape[1], dtype=np.bool_)
        count = _serve(
            runs,
            needed,
            there,
            self.keeps[way],
            i,
            j,
            again,
            cuts.places,
            cuts.moment,
            step.boundary,
            arrays.reads_start,
            arrays.reads,
            arrays.writes_start,
            arrays.writes,
            arrays.writer,
            step.flags.used,
            cuts.movable,
        )
        return runs[:count]


def _last_moments(step: Step) -> Ints:
    """Per forward place, the first moment from which on backward reads nothing made there or later."""
    latest = np.zeros(step.boundary + 1, dtype=np.int64)
    for v, uses in enumerate(step.uses):
        if uses:
            op = step.writer[v]
            latest[op] = max(latest[op], uses[-1] - step.boundary + 1)
    moments: Ints = np.maximum.accumulate(latest[::-1])[::-1].copy()
    return moments


def _small(step: Step) -> Bools:
    """The smallest values that backward reads, which take a thousandth of the bytes of all of them together.

    Statistics of a normalisation are such: an op of some size would have to run again for a few bytes.
    """
    used = step.flags.used & step.flags.movable
    size = np.where(used, step.program.arrays.bytes, 0)
    order = np.argsort(size, kind="stable")
    small = np.zeros(used.size, dtype=bool)
    small[order] = size[order].cumsum() * SMALL <= size.sum()
    return small & used


def _places(step: Step, most: int, movable: Bools) -> Ints:
    arrays = step.program.arrays
    forward = arrays.writer < step.boundary
    sizes = np.where(forward & (arrays.writer >= 0), arrays.bytes, 0)
    made = np.bincount(np.maximum(arrays.writer, 0), weights=sizes, minlength=len(step.reads))[: step.boundary]
    written = (1 + made.astype(np.int64)).cumsum()
    last = arrays.writer.copy()
    for op in range(step.boundary):
        for v in step.reads[op]:
            last[v] = op
    width = np.zeros(step.boundary + 2, dtype=np.int64)
    np.add.at(width, arrays.writer[movable] + 1, arrays.bytes[movable])
    np.subtract.at(width, last[movable] + 1, arrays.bytes[movable])
    width = width.cumsum()
    best: dict[int, int] = {}
    for place in range(1, step.boundary):
        window = int(written[place - 1]) * most // (int(written[-1]) + 1)
        if window not in best or width[place] < width[best[window]]:
            best[window] = place
    return np.array(sorted({0, step.boundary, *best.values()}), dtype=np.int64)


def _reaches(step: Step, places: Ints, moment: Ints, movable: Bools) -> tuple[Ints, Ints]:
    """Per value, the last cut that it crosses and the first after it is made (see Cuts)."""
    count = len(step.writer)
    until = np.full(count, NOWHERE, dtype=np.int64)
    origin = np.full(count, places.size, dtype=np.int64)
    reader = [NOWHERE] * count
    for op in range(step.boundary):
        for v in step.reads[op]:
            reader[v] = op
    for v in np.flatnonzero(movable).tolist():
        origin[v] = int(np.searchsorted(places, step.writer[v], side="right"))
        crossed = int(np.searchsorted(places, reader[v], side="right")) - 1
        if step.uses[v]:
            # Moments fall from cut to cut: those that wait for a later moment than the first use come first.
            first = step.uses[v][0] - step.boundary
            crossed = max(crossed, int((moment > first).sum()) - 1)
        if crossed >= origin[v]:
            until[v] = crossed
    return until, origin


def _backward_bytes(step: Step) -> tuple[Ints, Ints]:
    """What is there whatever is chosen, during each moment and across the instant before it."""
    arrays, boundary = step.program.arrays, step.boundary
    moments = len(step.reads) - boundary
    during, across = np.zeros(moments + 1, dtype=np.int64), np.zeros(moments + 2, dtype=np.int64)
    last: dict[int, int] = {}
    for t, reads in enumerate(step.reads[boundary:]):
        last.update((v, t) for v in reads)
    for t, writes in enumerate(step.writes[boundary:]):
        for v in writes:
            end = moments - 1 if arrays.output[v] else last.get(v, t)
            size = arrays.bytes[v]
            during[t] += size
            during[end + 1] -= size
            across[t + 1] += size
            across[end + 1] -= size
    always = sum(int(arrays.bytes[v]) for v, there in enumerate(step.held) if there)
    always += sum(int(arrays.bytes[v]) for v, there in enumerate(step.forced) if there and v in last)
    return during.cumsum()[:-1] + always + arrays.scratch[boundary:], across.cumsum()[:-1] + always


def _freed(cuts: Cuts) -> Ints:
    """By first cut i and last cut k, the bytes of values made before i that cross i but not k."""
    count = cuts.places.size
    made = np.zeros((count + 1, count + 1), dtype=np.int64)  # by origin and until
    crosses = np.flatnonzero(cuts.until >= cuts.origin)
    np.add.at(made, (cuts.origin[crosses], cuts.until[crosses]), cuts.step.program.arrays.bytes[crosses])
    freed = np.zeros((count, count), dtype=np.int64)
    before = made.cumsum(axis=0)
    for i in range(count):
        freed[i, i + 1 :] = before[i, i : count - 1].cumsum()
    return freed


@njit(cache=True)
def _sweep(
    runs: Ints,
    needed: Bools,
    mask: Bools,
    i: int,
    k: int,
    places: Ints,
    until: Ints,
    origin: Ints,
    reads_start: Ints,
    reads: Ints,
    writes_start: Ints,
    writes: Ints,
    writer: Ints,
    used: Bools,
    movable: Bools,
) -> int:
    """Write down the ops from cut i on that make what crosses cut k and what the mask keeps; returns how many.

    `needed` must be false everywhere, and is so again afterwards.
    """
    count = 0
    begin = places[i]
    for op in range(places[k] - 1, begin - 1, -1):
        for at in range(writes_start[op], writes_start[op + 1]):
            v = writes[at]
            if movable[v] and ((until[v] >= k and origin[v] <= k) or (mask[v] and used[v])):
                needed[op] = True
        if needed[op]:
            count += 1
            for at in range(reads_start[op], reads_start[op + 1]):
                v = reads[at]
                if movable[v] and writer[v] >= begin:
                    needed[writer[v]] = True
    at = 0
    for op in range(begin, places[k]):
        if needed[op]:
            runs[at] = op
            at += 1
            needed[op] = False
    return count


@njit(cache=True)
def _serve(
    runs: Ints,
    needed: Bools,
    there: Bools,
    mask: Bools,
    i: int,
    j: int,
    again: bool,
    places: Ints,
    moment: Ints,
    boundary: int,
    reads_start: Ints,
    reads: Ints,
    writes_start: Ints,
    writes: Ints,
    writer: Ints,
    used: Bools,
    movable: Bools,
) -> int:
    """Write down the backward ops between cuts i and j and their reruns; returns how many runs.

    With `again`, what the mask keeps is made first; without, it is there. `needed` and `there` must be false
    everywhere, and are so again afterwards.
    """
    begin, end = places[i], places[j]
    count = 0
    if again:
        for op in range(end - 1, begin - 1, -1):
            for at in range(writes_start[op], writes_start[op + 1]):
                v = writes[at]
                if movable[v] and mask[v] and used[v]:
                    needed[op] = True
            if needed[op]:
                for at in range(reads_start[op], reads_start[op + 1]):
                    v = reads[at]
                    if movable[v] and writer[v] >= begin:
                        needed[writer[v]] = True
        for op in range(begin, end):
            if needed[op]:
                needed[op] = False
                runs[count] = op
                count += 1
    for op in range(begin, end):
        for at in range(writes_start[op], writes_start[op + 1]):
            v = writes[at]
            there[v] = movable[v] and mask[v] and used[v]
    todo = np.empty(end - begin + 1, dtype=np.int64)
    for b in range(boundary + moment[j], boundary + moment[i]):
        found = 0
        for at in range(reads_start[b], reads_start[b + 1]):
            v = reads[at]
            op = writer[v]
            if movable[v] and op >= begin and not there[v] and not needed[op]:
                needed[op] = True
                todo[found] = op
                found += 1
        low, seen = end, 0
        while seen < found:
            op = todo[seen]
            seen += 1
            low = min(low, op)
            for at in range(reads_start[op], reads_start[op + 1]):
                v = reads[at]
                maker = writer[v]
                if movable[v] and maker >= begin and not there[v] and not needed[maker]:
                    needed[maker] = True
                    todo[found] = maker
                    found += 1
        if found:
            for op in range(low, end):
                if needed[op]:
                    needed[op] = False
                    runs[count] = op
                    count += 1
                    for at in range(writes_start[op], writes_start[op + 1]):
                        there[writes[at]] = True
        runs[count] = b
        count += 1
    for op in range(begin, end):
        for at in range(writes_start[op], writes_start[op + 1]):
            there[writes[at]] = False
    return count


@njit(cache=True)
def _peak(
    runs: Ints,
    count: int,
    last: Ints,
    stays: Bools,
    change: Ints,
    begin: int,
    first: int,
    boundary: int,
    reads_start: Ints,
    reads: Ints,
    writes_start: Ints,
    writes: Ints,
    writer: Ints,
    size: Ints,
    scratch: Ints,
    movable: Bools,
    during: Ints,
    across: Ints,
) -> int:
    """The most bytes during `runs`, of values made from forward op `begin` on and of what is there in any case.

    A value lives from its write to its last read, or to the end where `stays`; one that is read before it is written
    was there from the start. `first` is the moment in which the runs begin; `last` must be -1 everywhere and is so
    again.
    """
    for place in range(count + 1):
        change[place] = 0
    for place in range(count):
        op = runs[place]
        for at in range(reads_start[op], reads_start[op + 1]):
            v = reads[at]
            if movable[v] and writer[v] >= begin:
                if last[v] < 0:
                    change[0] += size[v]
                last[v] = place
        if op < boundary:
            for at in range(writes_start[op], writes_start[op + 1]):
                v = writes[at]
                if movable[v]:
                    if last[v] >= 0:
                        change[last[v] + 1] -= size[v]
                    change[place] += size[v]
                    last[v] = place
    for place in range(count):
        op = runs[place]
        for at in range(reads_start[op], reads_start[op + 1]):
            v = reads[at]
            if last[v] >= 0:
                if not stays[v]:
                    change[last[v] + 1] -= size[v]
                last[v] = -1
        if op < boundary:
            for at in range(writes_start[op], writes_start[op + 1]):
                v = writes[at]
                if last[v] >= 0:
                    if not stays[v]:
                        change[last[v] + 1] -= size[v]
                    last[v] = -1
    there, most, t = 0, 0, first
    for place in range(count):
        op = runs[place]
        there += change[place]
        if op < boundary:
            most = max(most, there + across[t] + scratch[op])
        else:
            most = max(most, there + during[t])
            t += 1
    return most


@njit(cache=True)
def _costs(
    masks: Bools,
    places: Ints,
    moment: Ints,
    until: Ints,
    origin: Ints,
    during: Ints,
    across: Ints,
    boundary: int,
    reads_start: Ints,
    reads: Ints,
    writes_start: Ints,
    writes: Ints,
    writer: Ints,
    size: Ints,
    ns: Ints,
    scratch: Ints,
    used: Bools,
    movable: Bools,
) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints, Ints]:
    """See Segments; the arrays of a sweep have one way more, the last, which keeps nothing."""
    ways, cuts = masks.shape[0], places.size
    sweep_time = np.zeros((ways + 1, cuts, cuts), dtype=np.int64)
    sweep_peak = np.zeros((ways + 1, cuts, cuts), dtype=np.int64)
    kept_bytes = np.zeros((ways + 1, cuts, cuts), dtype=np.int64)
    kept_time = np.zeros((ways, cuts, cuts), dtype=np.int64)
    kept_peak = np.zeros((ways, cuts, cuts), dtype=np.int64)
    again_time = np.zeros((ways, cuts, cuts), dtype=np.int64)
    again_peak = np.zeros((ways, cuts, cuts), dtype=np.int64)
    ops = reads_start.size - 1
    runs = np.empty(ops + boundary + 1, dtype=np.int64)
    change = np.zeros(ops + boundary + 2, dtype=np.int64)
    needed = np.zeros(boundary + 1, dtype=np.bool_)
    there = np.zeros(size.size, dtype=np.bool_)
    stays = np.zeros(size.size, dtype=np.bool_)
    last = np.full(size.size, -1, dtype=np.int64)
    nothing = np.zeros(size.size, dtype=np.bool_)
    idle = np.zeros(across.size, dtype=np.int64)
    for way in range(ways + 1):
        mask = masks[way] if way < ways else nothing
        for i in range(cuts):
            begin = places[i]
            for j in range(i + 1, cuts):
                for op in range(begin, places[j]):
                    for at in range(writes_start[op], writes_start[op + 1]):
                        v = writes[at]
                        crosses = until[v] >= j and origin[v] <= j
                        kept = mask[v] and used[v]
                        stays[v] = movable[v] and (crosses or kept)
                        if movable[v] and kept and not crosses:
                            kept_bytes[way, i, j] += size[v]
                count = _sweep(
                    runs, needed, mask, i, j, places, until, origin, reads_start, reads, writes_start, writes, writer,
                    used, movable,
                )  # fmt: skip
                for at in range(count):
                    sweep_time[way, i, j] += ns[runs[at]]
                sweep_peak[way, i, j] = _peak(
                    runs, count, last, stays, change, begin, 0, boundary, reads_start, reads, writes_start, writes,
                    writer, size, scratch, movable, idle, idle,
                )  # fmt: skip
                for op in range(begin, places[j]):
                    for at in range(writes_start[op], writes_start[op + 1]):
                        stays[writes[at]] = False
                if way == ways:
                    continue
                for again in range(2):
                    count = _serve(
                        runs, needed, there, mask, i, j, again == 1, places, moment, boundary, reads_start, reads,
                        writes_start, writes, writer, used, movable,
                    )  # fmt: skip
                    time = 0
                    for at in range(count):
                        if runs[at] < boundary:
                            time += ns[runs[at]]
                    peak = _peak(
                        runs, count, last, stays, change, begin, moment[j], boundary, reads_start, reads, writes_start,
                        writes, writer, size, scratch, movable, during, across,
                    )  # fmt: skip
                    if again:
                        again_time[way, i, j], again_peak[way, i, j] = time, peak
                    else:
                        kept_time[way, i, j], kept_peak[way, i, j] = time, peak
    return sweep_time, sweep_peak, kept_bytes, kept_time, kept_peak, again_time, again_peak
