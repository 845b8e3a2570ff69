"""The rules of a sequence of runs, one run after another over sets of copies: slow, and plain to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lowtide.program import Program, Role


class Refused(Exception):
    """The sequence cannot be carried out; `position` is the run that fails, or None."""

    def __init__(self, position: int | None) -> None:
        super().__init__(position)
        self.position = position


@dataclass(eq=False)
class Copy:
    """One writing of a value, and the runs that touch it."""

    value: int
    touched: list[int] = field(default_factory=list)
    to_the_end: bool = False


def timeline(program: Program, runs: Sequence[int]) -> list[int]:
    """Bytes held during each run.

    A value lives from the run that writes it to its last read before it is written again; an output's first copy to the
    end. What an op reads, writes and needs as scratch counts while it runs; static values do not count. Every op
    runs; one that must run once runs once; nothing is read before it is made.
    """
    for at, run in enumerate(runs):
        if run not in range(len(program.ops)):
            raise Refused(at)
    for number in range(len(program.ops)):
        if number not in runs:
            raise Refused(None)
    # Of several ops that run again the first in the program is named.
    for number, op in enumerate(program.ops):
        places = [at for at, run in enumerate(runs) if run == number]
        if op.once and len(places) > 1:
            raise Refused(places[1])
    copies: list[Copy] = []
    newest: dict[int, Copy] = {}
    for at, run in enumerate(runs):
        op = program.ops[run]
        for value in op.reads:
            if program.values[value].role is not Role.STATIC:
                if value not in newest:
                    raise Refused(at)
                newest[value].touched.append(at)
        for value in op.writes:
            is_first = value not in newest
            newest[value] = Copy(value, [at], is_first and program.values[value].role is Role.OUTPUT)
            copies.append(newest[value])
    held = []
    for at, run in enumerate(runs):
        alive = [c for c in copies if c.touched[0] <= at and (c.to_the_end or at <= max(c.touched))]
        held.append(sum(program.values[c.value].bytes for c in alive) + program.ops[run].scratch)
    return held
