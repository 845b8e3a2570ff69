"""What the code for a sequence of runs is expected to hold: the referee's count, but for what is written in place.

A kernel that Inductor writes puts a result where one of its reads was, if nothing needs that any more and the sizes
agree. The referee counts both; at the narrowest place of a step that may be a third of what is there.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowtide.compiled.partitioned import Partitioned
from lowtide.program import Program, Role


def expected_peak(step: Partitioned, runs: Sequence[int]) -> int:
    """Bytes at the peak of a valid sequence, what is static not counted."""
    program = step.program
    dying = _last_reads(program, runs)
    now = peak = 0
    for run, gone in zip(runs, dying, strict=True):
        op, kernel = program.ops[run], step.kernels[run]
        free = sorted(program.values[v].bytes for v in gone if v in op.reads)
        made = 0
        for value in op.writes:
            size = program.values[value].bytes
            if kernel is not None and kernel.fused and size in free:
                free.remove(size)
            else:
                made += size
        peak = max(peak, now + made + op.scratch)
        now += sum(program.values[v].bytes for v in op.writes) - sum(program.values[v].bytes for v in gone)
    return peak


def _last_reads(program: Program, runs: Sequence[int]) -> list[list[int]]:
    """The values that are gone after each run."""
    gone: list[list[int]] = [[] for _ in runs]
    last: dict[int, int] = {}
    seen: set[int] = set()
    kept: set[int] = set()
    for place, run in enumerate(runs):
        op = program.ops[run]
        for value in op.writes:
            if value in last:
                gone[last.pop(value)].append(value)
            if value not in seen and program.values[value].role is Role.OUTPUT:
                kept.add(value)
            else:
                kept.discard(value)
            seen.add(value)
        for value in (*op.reads, *op.writes):
            if program.values[value].role is not Role.STATIC and value not in kept:
                last[value] = place
    for value, place in last.items():
        gone[place].append(value)
    return gone
