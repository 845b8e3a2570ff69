"""The referee: what memory holds at every run of a sequence, or why the sequence cannot be carried out.

It shares no code with any planner. A value lives from the run that writes it to its last read before it is written
again; the first copy of an output lives to the end; an op's own reads, writes and scratch count while it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lowtide.errors import InvalidPlan
from lowtide.program import Arrays, Program


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the referee saw.

    timeline   bytes in memory during each run, static values not counted
    peak       the largest of them; 0 for no runs
    at         place in the sequence of the first run that reaches the peak; 0 for no runs
    time       nanoseconds of all runs together
    counts     how often each op of the program ran
    """

    timeline: tuple[int, ...]
    peak: int
    at: int
    time: int
    counts: tuple[int, ...]


def run(program: Program, runs: Sequence[int]) -> Outcome:
    """Carry out `runs` on paper.

    Raises InvalidPlan where an op does not exist, reads a value that is not there, runs again though it must not,
    or never runs at all.

    >>> from lowtide import Op, Phase, Role, Value
    >>> program = Program((Value("x", 4, Role.ACTIVATION),), (Op("make", Phase.FORWARD, (), (0,), ns=5),))
    >>> outcome = run(program, [0, 0])
    >>> outcome.peak, outcome.time, outcome.counts
    (4, 10, (2,))
    """
    arrays = program.arrays
    order = np.asarray(runs, dtype=np.int64).reshape(-1)
    wrong = np.flatnonzero((order < 0) | (order >= len(program.ops)))
    if wrong.size:
        at = int(wrong[0])
        raise InvalidPlan(f"run {at}: there is no op {int(order[at])}", at)
    counts = np.bincount(order, minlength=len(program.ops))
    _check_counts(program, order, counts)
    timeline = _timeline(program, arrays, order)
    at = int(timeline.argmax()) if timeline.size else 0
    return Outcome(
        timeline=tuple(timeline.tolist()),
        peak=int(timeline[at]) if timeline.size else 0,
        at=at,
        time=int(arrays.ns[order].sum()),
        counts=tuple(counts.tolist()),
    )


def _check_counts(program: Program, order: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
    missing = np.flatnonzero(counts == 0)
    if missing.size:
        op = int(missing[0])
        raise InvalidPlan(f"op {op} ({program.ops[op].name}) never runs")
    again = np.flatnonzero(program.arrays.once & (counts > 1))
    if again.size:
        op = int(again[0])
        at = int(np.flatnonzero(order == op)[1])
        raise InvalidPlan(f"run {at}: op {op} ({program.ops[op].name}) runs again: {program.ops[op].once}", at)


def _timeline(program: Program, arrays: Arrays, order: NDArray[np.int64]) -> NDArray[np.int64]:
    read_values, read_at = _accesses(arrays.reads_start, arrays.reads, order)
    written_values, written_at = _accesses(arrays.writes_start, arrays.writes, order)
    values = np.concatenate([written_values, read_values])
    places = np.concatenate([written_at, read_at])
    is_write = np.zeros(values.size, dtype=bool)
    is_write[: written_values.size] = True
    # By value, then by place in the sequence. No op reads what it writes, so places never tie within a value.
    by_value = np.argsort(values * (order.size + 1) + places, kind="stable")
    values, places, is_write = values[by_value], places[by_value], is_write[by_value]
    first = np.ones(values.size, dtype=bool)
    first[1:] = values[1:] != values[:-1]
    unmade = np.flatnonzero(first & ~is_write)
    if unmade.size:
        worst = unmade[places[unmade].argmin()]
        at, value = int(places[worst]), int(values[worst])
        op = int(order[at])
        raise InvalidPlan(
            f"run {at}: op {op} ({program.ops[op].name}) reads value {value} "
            f"({program.values[value].name}) before it is made",
            at,
        )
    # One copy a write; it ends at the last access before the next copy begins.
    begins = np.flatnonzero(is_write)
    ends = places[np.append(begins[1:], values.size) - 1] if begins.size else begins
    held = values[begins]
    ends = np.where(arrays.output[held] & first[begins], order.size - 1, ends)
    change = np.zeros(order.size + 1, dtype=np.int64)
    np.add.at(change, places[begins], arrays.bytes[held])
    np.subtract.at(change, ends + 1, arrays.bytes[held])
    return change.cumsum()[:-1] + arrays.scratch[order]


def _accesses(
    start: NDArray[np.int64], rows: NDArray[np.int64], order: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The values that each run touches, and the place of that run, flattened."""
    lengths = (start[1:] - start[:-1])[order]
    places = np.repeat(np.arange(order.size), lengths)
    offsets = np.arange(places.size) - np.repeat(lengths.cumsum() - lengths, lengths)
    return rows[np.repeat(start[order], lengths) + offsets], places
