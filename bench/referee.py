"""How long the referee takes for ten thousand runs: one JSON line a case.

python bench/referee.py > bench/results/referee.jsonl
"""

from __future__ import annotations

import json
import platform
import time

from lowtide import referee
from lowtide.program import Op, Phase, Program, Role, Value


def ladder(layers: int) -> Program:
    """A chain forward and back, every gradient made from the one before and an activation."""
    values = [Value("a", 4, Role.ACTIVATION)] * layers + [Value("g", 4, Role.GRADIENT)] * layers
    ops = [Op("f", Phase.FORWARD, (i - 1,) if i else (), (i,), ns=1) for i in range(layers)]
    for i in range(layers):
        reads = (layers - 1 - i, layers + i - 1) if i else (layers - 1,)
        ops.append(Op("b", Phase.BACKWARD, reads, (layers + i,), ns=1))
    return Program(tuple(values), tuple(ops))


def main() -> None:
    """Time the first call, which makes the program's arrays, and the best of twenty more."""
    for runs in (1_000, 10_000, 100_000):
        program = ladder(runs // 2)
        seconds = []
        for _ in range(21):
            begin = time.perf_counter()
            outcome = referee.run(program, range(runs))
            seconds.append(time.perf_counter() - begin)
        line = {
            "bench": "referee",
            "runs": runs,
            "first_ms": round(1e3 * seconds[0], 2),
            "best_ms": round(1e3 * min(seconds[1:]), 2),
            "peak": outcome.peak,
            "python": platform.python_version(),
            "machine": platform.machine(),
        }
        print(json.dumps(line))


if __name__ == "__main__":
    main()
