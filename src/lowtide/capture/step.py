"""One training step made of several graphs: one Program for planners, and back to one sequence a graph.

Where the front end breaks a model into graphs, the step runs their forwards in order and their backwards in reverse.
The joined Program says just that, so that one budget is planned over all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lowtide.captured import GIVE
from lowtide.program import Op, Program, Value

LEAVE, ENTER = "leave", "enter"


def join(programs: Sequence[Program]) -> Program:
    """The Program of a step that runs these graphs one after another; one graph is its own step."""
    if len(programs) == 1:
        return programs[0]
    values: list[Value] = []
    shifted: list[list[Op]] = []
    for program in programs:
        base = len(values)
        values += program.values
        shifted.append([_shift(op, base) for op in program.ops])
        if program is not programs[-1] and program.boundary < len(program.ops):
            # Between this graph's forward and its backward the later graphs run; only the last one meets the loss.
            enter = shifted[-1][program.boundary]
            shifted[-1][program.boundary] = replace(enter, scratch=0)
    forward = [ops[: program.boundary] for ops, program in zip(shifted, programs, strict=True)]
    backward = [ops[program.boundary :] for ops, program in zip(shifted, programs, strict=True)]
    return Program(tuple(values), tuple(op for part in (*forward, *reversed(backward)) for op in part))


def split(programs: Sequence[Program], runs: Sequence[int]) -> list[list[int]]:
    """Each graph's own sequence, from a sequence of the joined Program."""
    if len(programs) == 1:
        return [list(runs)]
    place = {}
    for graph, (program, first, second) in enumerate(zip(programs, *_offsets(programs), strict=True)):
        for op in range(len(program.ops)):
            place[op + first if op < program.boundary else op - program.boundary + second] = graph, op
    parts: list[list[int]] = [[] for _ in programs]
    for run in runs:
        graph, op = place[run]
        parts[graph].append(op)
    return parts


def settle(programs: Sequence[Program], runs: Sequence[int]) -> list[int]:
    """The order in which a joined sequence really runs: every graph's runs within its own forward and backward, at the
    end of which it hands over its outputs and its gradients, wherever the sequence says so.
    """
    parts = split(programs, runs)
    return in_turn(programs, [_hand_over_last(program, part) for program, part in zip(programs, parts, strict=True)])


def _hand_over_last(program: Program, part: list[int]) -> list[int]:
    cut = next((i for i, op in enumerate(part) if program.ops[op].name == ENTER), len(part))
    ends = (max((i for i, op in enumerate(program.ops) if op.name == name), default=-1) for name in (LEAVE, GIVE))
    return [op for half, end in zip((part[:cut], part[cut:]), ends, strict=True) for op in _last(half, end)]


def _last(half: list[int], end: int) -> list[int]:
    """The runs with those of one op at the end."""
    return sorted(half, key=end.__eq__)


def in_turn(programs: Sequence[Program], parts: Sequence[Sequence[int]]) -> list[int]:
    """The sequence of the joined Program in which every graph runs its own part: forwards in order, backwards in
    reverse.
    """
    if len(programs) == 1:
        return list(parts[0])
    forward: list[int] = []
    backward: list[list[int]] = []
    for program, part, first, second in zip(programs, parts, *_offsets(programs), strict=True):
        numbers = [op + first if op < program.boundary else op - program.boundary + second for op in part]
        cut = next((i for i, op in enumerate(part) if op >= program.boundary), len(part))
        forward += numbers[:cut]
        backward.append(numbers[cut:])
    return forward + [run for part in reversed(backward) for run in part]


def _offsets(programs: Sequence[Program]) -> tuple[list[int], list[int]]:
    """Number of each graph's first forward op, and of its first backward op, in the joined Program."""
    forward, number = [], 0
    for program in programs:
        forward.append(number)
        number += program.boundary
    backward = [0] * len(programs)
    for graph in reversed(range(len(programs))):
        backward[graph] = number
        number += len(programs[graph].ops) - programs[graph].boundary
    return forward, backward


def _shift(op: Op, base: int) -> Op:
    return replace(op, reads=tuple(v + base for v in op.reads), writes=tuple(v + base for v in op.writes))
