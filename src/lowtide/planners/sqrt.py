"""sqrt: segments of the forward pass, of which only the boundaries are kept."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from math import isqrt

from lowtide.plan import Plan
from lowtide.planners.promise import promise, too_small
from lowtide.planners.replay import replay
from lowtide.planners.rerun import expand
from lowtide.planners.step import Step
from lowtide.program import Program


def solve(program: Program, budget: int) -> Plan:
    """Fastest of the plans with 1 to 2 sqrt(n) segments whose peak is at most `budget` bytes.

    With s segments, the n forward ops are split in s runs of equal bytes written; what one segment makes and a
    later one reads is kept, and what backward reads of a segment is made again when backward gets there, as late as
    possible. The last segment is kept whole, for backward begins with it; so one segment keeps everything.

    Chen et al. keep the boundaries of sqrt(n) segments of a chain of n equal layers, for a peak of O(sqrt(n)); with
    unequal layers, or branches that cross many boundaries, nothing is claimed for the choice.
    Time O(n sqrt(n) log n).
    Ref: Chen, Xu, Zhang and Guestrin 2016, arXiv 1604.06174.
    """
    step = Step.of(program)
    plans = []
    for segments in range(1, 2 * isqrt(step.boundary) + 2):
        runs = expand(step, crossing(step, cuts(step, segments)))
        seen = replay(program, runs)
        plans.append((seen.time, seen.peak, runs))
    fitting = [plan for plan in plans if plan[1] <= budget]
    if not fitting:
        raise too_small(program, min(plans, key=lambda plan: plan[1])[2], budget, planner="sqrt")
    runs = min(fitting, key=lambda plan: plan[:2])[2]
    return promise(program, runs, budget, planner="sqrt", searched="segments of equal bytes, run again once")


def cuts(step: Step, segments: int) -> list[int]:
    """The forward ops before which a new segment begins, for segments that write about the same number of bytes."""
    sizes = step.program.arrays.bytes.tolist()
    written = list(accumulate(sum(sizes[v] for v in step.writes[op]) for op in range(step.boundary)))
    total = written[-1] if written else 0
    places = {bisect_left(written, total * s / segments) + 1 for s in range(1, segments)}
    return sorted(place for place in places if place < step.boundary)


def crossing(step: Step, cuts: list[int]) -> set[int]:
    """The values that are made in one segment and read by a later one, and all that the last segment makes."""
    segment = [0] * step.boundary
    for place in cuts:
        segment[place] = 1
    segment = list(accumulate(segment))
    last = segment[-1] if segment else 0
    kept = {v for op in range(step.boundary) if segment[op] == last for v in step.writes[op]}
    for op in range(step.boundary):
        kept.update(v for v in step.reads[op] if segment[step.writer[v]] < segment[op])
    return kept
