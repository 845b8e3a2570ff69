"""Step: what every planner here needs to know of a Program, worked out once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lowtide.program import Program, Role


@dataclass(frozen=True, slots=True)
class Flags:
    """Facts of a Step as arrays, for code that must be fast.

    forward     per value, see Step
    always      per value, whether it is there all through backward at no choice: forced or held
    movable     per value, whether there is a choice: made in forward, neither forced nor held
    used        per value, whether a forward op writes it and a backward op reads it
    essential   per forward op, see Step
    """

    forward: NDArray[np.bool_]
    always: NDArray[np.bool_]
    movable: NDArray[np.bool_]
    used: NDArray[np.bool_]
    essential: NDArray[np.bool_]


@dataclass(frozen=True)
class Step:
    """A Program seen by a planner that keeps and reruns forward values. Static values appear nowhere.

    program     the Program
    boundary    number of the first backward op
    reads       per op, the values it reads
    writes      per op, the values it writes
    writer      per value, the op that writes it (-1 for static values)
    forward     per value, whether a forward op writes it
    held        per value, whether it is an output made in forward, and so there all through backward at no choice
    uses        per forward value, the backward ops that read it, in order; empty for other values
    forced      per value, whether backward may need it and no op may make it again: kept, if it is needed
    essential   per op, whether it must have run before backward begins: what has to be run only once, what makes
                outputs, and all that these and the first backward op rest on. A forward op that is not
                essential may have its first run in backward, which then costs no time at all.
    """

    program: Program
    boundary: int
    reads: tuple[tuple[int, ...], ...]
    writes: tuple[tuple[int, ...], ...]
    writer: tuple[int, ...]
    forward: tuple[bool, ...]
    held: tuple[bool, ...]
    uses: tuple[tuple[int, ...], ...]
    forced: tuple[bool, ...]
    essential: tuple[bool, ...]

    @classmethod
    def of(cls, program: Program) -> Step:
        """The Step of a Program."""
        roles = [value.role for value in program.values]
        static = [role is Role.STATIC for role in roles]
        reads = tuple(tuple(v for v in op.reads if not static[v]) for op in program.ops)
        writes = tuple(op.writes for op in program.ops)
        writer = tuple(program.arrays.writer.tolist())
        boundary = program.boundary
        forward = tuple(0 <= op < boundary for op in writer)
        uses: list[list[int]] = [[] for _ in roles]
        for b in range(boundary, len(reads)):
            for v in reads[b]:
                if forward[v]:
                    uses[v].append(b)
        return cls(
            program=program,
            boundary=boundary,
            reads=reads,
            writes=writes,
            writer=writer,
            forward=forward,
            held=tuple(made and role is Role.OUTPUT for made, role in zip(forward, roles)),
            uses=tuple(map(tuple, uses)),
            forced=tuple(made and not program.ops[op].rerunnable for made, op in zip(forward, writer)),
            essential=_essential(program, boundary, reads, writer),
        )

    @cached_property
    def certain(self) -> tuple[bool, ...]:
        """Per forward op, whether in any plan it has run before the first backward op does."""
        certain = [False] * self.boundary
        if self.boundary < len(self.reads):
            for v in self.reads[self.boundary]:
                certain[self.writer[v]] = True
        for op in range(self.boundary - 1, -1, -1):
            if self.program.ops[op].once:
                certain[op] = True
            if certain[op]:
                for v in self.reads[op]:
                    certain[self.writer[v]] = True
        return tuple(certain)

    @cached_property
    def flags(self) -> Flags:
        """The same facts as arrays; made once."""
        forward = np.array(self.forward, dtype=bool)
        always = np.array(self.forced, dtype=bool) | np.array(self.held, dtype=bool)
        used = np.array([bool(uses) for uses in self.uses], dtype=bool)
        return Flags(forward, always, forward & ~always, used, np.array(self.essential, dtype=bool))


def _essential(
    program: Program, boundary: int, reads: tuple[tuple[int, ...], ...], writer: tuple[int, ...]
) -> tuple[bool, ...]:
    essential = [False] * boundary
    if boundary < len(reads):
        for v in reads[boundary]:
            essential[writer[v]] = True
    for op in range(boundary - 1, -1, -1):
        call = program.ops[op]
        if call.once or any(program.values[v].role is Role.OUTPUT for v in call.writes):
            essential[op] = True
        if essential[op]:
            for v in reads[op]:
                essential[writer[v]] = True
    return tuple(essential)
