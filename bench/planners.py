"""How long the planners of bare problems take: `python bench/planners.py min_peak rotor exact_chain`.

One JSON line a case on standard output, with everything needed to run it again. `bench/results/planners.jsonl` holds
the lines that the documents quote.
"""

from __future__ import annotations

import json
import platform
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from lowtide.errors import BudgetTooSmall
from lowtide.planners import exact_chain, min_peak, rotor
from lowtide.planners.chain import Chain
from lowtide.planners.chain_replay import ChainPlan
from lowtide.planners.sizes import Sizes

Row = dict[str, Any]


def drawn_sizes(shape: str, n: int) -> Sizes:
    """A line of n layers: all equal, falling, or drawn evenly with seed 1."""
    draw = random.Random(1)
    numbers = {
        "equal": lambda: [1] * n,
        "falling": lambda: range(n, 0, -1),
        "random": lambda: [draw.randint(0, 10**6) for _ in range(n)],
    }
    return Sizes(tuple(numbers[shape]()))


def drawn_chain(stages: int, seed: int) -> Chain:
    """A chain with all numbers drawn evenly from 1 to 10^6, scratch from 1 to 10^5."""
    draw = random.Random(seed)

    def numbers(count: int, most: int = 10**6) -> tuple[int, ...]:
        return tuple(draw.randint(1, most) for _ in range(count))

    values = numbers(stages + 1)
    saved = tuple(value + beside for value, beside in zip(values[1:], numbers(stages)))
    scratch = numbers(stages, 10**5), numbers(stages, 10**5)
    return Chain(numbers(stages), numbers(stages), values, saved, numbers(stages + 1), *scratch)


def min_peak_seconds() -> Iterator[Row]:
    """Is it linear: a million layers in about a second?"""
    for n in (10_000, 100_000, 1_000_000):
        for shape in ("equal", "falling", "random"):
            sizes = drawn_sizes(shape, n)
            for objective in (min_peak.Objective.ACTIVATIONS, min_peak.Objective.PAPER, min_peak.Objective.TORCH):
                yield _min_peak_row(sizes, shape, objective)
    for n in (400, 4000):
        for shape in ("equal", "falling", "random"):
            for objective in (min_peak.Objective.SUM, min_peak.Objective.REENTRANT):
                yield _min_peak_row(drawn_sizes(shape, n), shape, objective)


def _min_peak_row(sizes: Sizes, shape: str, objective: min_peak.Objective) -> Row:
    seconds, answer = timed(partial(min_peak.solve, sizes, objective=objective))
    facts = {"layers": len(sizes.bytes), "sizes": shape, "objective": objective.value}
    return {**facts, "cpu_seconds": seconds, "peak": answer.peak, "kept": len(answer.layers)}


def rotor_seconds() -> Iterator[Row]:
    """How long do long chains take at 500 slots, and how much slower than plain training are the plans?"""
    for stages in (100, 300):
        chain = drawn_chain(stages, seed=1)
        for share in (0.1, 0.3, 0.6):
            budget = budget_at(rotor.solve, chain, share)
            seconds, plan = timed(partial(rotor.solve, chain, budget, slots=500))
            yield _chain_row(chain, share, budget, seconds, plan) | {"slots": 500}


def rotor_slots() -> Iterator[Row]:
    """What does thinning the grid cost? The same chain at ever more slots, the last of them exact."""
    chain = drawn_chain(20, seed=1)
    budget = budget_at(rotor.solve, chain, 0.2)
    for slots in (10, 30, 100, 500, 2000, 10_000, None):
        seconds, plan = timed(partial(rotor.solve, chain, budget, slots=slots))
        yield _chain_row(chain, 0.2, budget, seconds, plan) | {"slots": slots}


def exact_chain_seconds() -> Iterator[Row]:
    """How long does the search take, and how much faster than rotor's are its plans?"""
    for stages in (4, 8, 10, 12):
        for seed in (1, 2):
            chain = drawn_chain(stages, seed)
            for share in (0.0, 0.1, 0.3):
                budget = budget_at(rotor.solve, chain, share)
                seconds, plan = timed(partial(exact_chain.solve, chain, budget))
                persistent = rotor.solve(chain, budget)
                row = _chain_row(chain, share, budget, seconds, plan)
                yield row | {"seed": seed, "rotor_overhead": overhead(chain, persistent)}


def _chain_row(chain: Chain, share: float, budget: int, seconds: float, plan: ChainPlan) -> Row:
    return {
        "stages": chain.stages,
        "budget": budget,
        "share": share,
        "cpu_seconds": seconds,
        "overhead": overhead(chain, plan),
        "optimal": plan.optimal,
    }


def budget_at(solve: Callable[[Chain, int | None], ChainPlan], chain: Chain, share: float) -> int:
    """The budget that lies this share of the way from the least that works to what plain training needs."""
    try:
        needed = solve(chain, 0).peak
    except BudgetTooSmall as error:
        needed = error.needed
    return needed + int(share * (solve(chain, None).peak - needed))


def overhead(chain: Chain, plan: ChainPlan) -> float:
    """Extra time over plain training, as a share of it."""
    plain = sum(chain.forward_ns) + sum(chain.backward_ns)
    return round(plan.time / plain - 1, 4)


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Processor seconds, which other work on the machine disturbs less than the clock's; all of this is one thread."""
    start = time.process_time()
    answer = call()
    return round(time.process_time() - start, 3), answer


QUESTIONS = {
    "min_peak": (min_peak_seconds,),
    "rotor": (rotor_seconds, rotor_slots),
    "exact_chain": (exact_chain_seconds,),
}


def main() -> None:
    """Answer the questions named on the command line, or all."""
    for name in sys.argv[1:] or QUESTIONS:
        for question in QUESTIONS[name]:
            for row in question():
                head = {"command": f"python bench/planners.py {name}", "question": question.__name__}
                megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
                machine = {"python": platform.python_version(), "machine": platform.machine(), "rss_mib": megabytes}
                print(json.dumps({**head, **row, **machine}), flush=True)


if __name__ == "__main__":
    main()
