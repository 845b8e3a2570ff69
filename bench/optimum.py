"""How often the default planner finds the optimum of small random steps, and whether its bound ever lies above it.

    python bench/optimum.py 20000 1     so many steps, drawn with this seed; one JSON line sums up

The optimum is that of an exhaustive search over all memory states (`tests/oracles/programs.py`), of plans that run
each backward op once and in the program's order, with any number of reruns of forward ops in any order.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from random import Random

sys.path.append(str(Path(__file__).parents[1]))

from tests.oracles.programs import least_time

from lowtide import referee
from lowtide.errors import BudgetTooSmall
from lowtide.planners import best
from lowtide.program import Op, Phase, Program, Role, Value


def drawn(draw: Random) -> Program:
    """A chain of layers with skips; backward undoes each by ops that read the gradient and some of what it touched."""
    values: list[Value] = []
    ops: list[Op] = []
    layers: list[tuple[list[int], list[int]]] = []

    def value(role: Role) -> int:
        values.append(Value(f"v{len(values)}", draw.randint(1, 9), role))
        return len(values) - 1

    count = draw.randint(2, 4)
    made: list[int] = []
    for i in range(count):
        reads = made[-1:]
        if len(made) > 1 and draw.random() < 0.35:
            reads.append(draw.choice(made[:-1]))
        writes = [value(Role.ACTIVATION) for _ in range(2 if draw.random() < 0.25 else 1)]
        once = "moves a counter" if draw.random() < 0.08 else ""
        ops.append(
            Op(
                f"f{i}",
                Phase.FORWARD,
                tuple(reads),
                tuple(writes),
                draw.randint(1, 9),
                draw.choice([0, 0, 0, 1, 3]),
                once,
            )
        )
        layers.append((reads, writes))
        made.append(writes[0])
    gradient = value(Role.GRADIENT)
    ops.append(Op("enter", Phase.BACKWARD, (made[-1],), (gradient,), 0, 0, "begins backward"))
    for i, (reads, writes) in reversed(list(enumerate(layers))):
        wanted = [gradient, *writes[1:], *(v for v in (*reads, writes[0]) if draw.random() < 0.7)]
        grown = value(Role.GRADIENT if i else Role.OUTPUT)
        wanted = list(dict.fromkeys(wanted))
        ops.append(Op(f"b{i}", Phase.BACKWARD, tuple(wanted), (grown,), draw.randint(1, 9), draw.choice([0, 0, 1])))
        if draw.random() < 0.25:
            ops.append(Op(f"w{i}", Phase.BACKWARD, (gradient, *reads), (value(Role.OUTPUT),), draw.randint(1, 9)))
        gradient = grown
    return Program(tuple(values), tuple(ops))


def compare(cases: int, seed: int) -> dict:
    """Draw, plan, search exhaustively, count."""
    draw = Random(seed)
    counts = {"planned": 0, "optimal": 0, "proven_optimal": 0, "bound_above_optimum": 0, "infeasible": 0, "missed": 0}
    worst = 0.0
    begin = time.process_time()
    for _ in range(cases):
        program = drawn(draw)
        plain = referee.run(program, range(len(program.ops)))
        budget = plain.peak - draw.randint(1, max(1, plain.peak // 4))
        optimum = least_time(program, budget, backward_in_order=True)
        try:
            plan = best.solve(program, budget)
        except BudgetTooSmall:
            counts["infeasible" if optimum is None else "missed"] += 1
            continue
        assert referee.run(program, plan.runs).time == plan.time >= optimum
        counts["planned"] += 1
        counts["optimal"] += plan.time == optimum
        counts["proven_optimal"] += plan.gap == 0
        counts["bound_above_optimum"] += plan.bound.time > optimum
        worst = max(worst, (plan.time - optimum) / plain.time)
    seconds = round(time.process_time() - begin)
    return {
        "cases": cases,
        "seed": seed,
        **counts,
        "worst_percent_of_plain": round(100 * worst, 2),
        "cpu_seconds": seconds,
    }


if __name__ == "__main__":
    print(json.dumps(compare(*map(int, sys.argv[1:3]))))
