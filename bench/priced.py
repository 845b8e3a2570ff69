"""How near the default planner comes to its own bound, and how long it takes: one JSON line a case.

    python bench/priced.py            steps of well-known shapes, budgets from 20 to 90 % of the way up
    python bench/priced.py large      steps of 1,000, 5,000 and 20,000 ops
    python bench/priced.py table < bench/results/priced.jsonl     the table of the gaps in docs/methods/priced.md

A budget of p % lies p % of the way from the least that the planner meets to what the plain step takes. Gaps are in
per cent of the plain step's time; the last line sums up.
"""

from __future__ import annotations

import json
import sys
import time
from statistics import median

from lowtide import referee
from lowtide.errors import BudgetTooSmall
from lowtide.planners import best, priced
from lowtide.program import Program
from synthetic_programs import LARGE, SHAPES


def case(name: str, program: Program, planner, budget: int, **more) -> dict:
    """One plan, refereed."""
    plain = referee.run(program, range(len(program.ops)))
    program.arrays  # noqa: B018  (made once for all planners, and not part of planning)
    start = time.perf_counter()
    plan = planner.solve(program, budget)
    seconds = time.perf_counter() - start
    outcome = referee.run(program, plan.runs)
    assert outcome.peak == plan.peak <= budget
    assert outcome.time == plan.time
    return {
        "program": name,
        "ops": len(program.ops),
        **more,
        "budget": budget,
        "of_plain_peak": round(budget / plain.peak, 4),
        "planner": plan.planner,
        "extra": round(100 * (plan.time / plain.time - 1), 3),
        "bound": round(100 * (plan.bound.time / plain.time - 1), 3),
        "gap": round(100 * plan.gap / plain.time, 3),
        "seconds": round(seconds, 2),
    }


def least(program: Program) -> int:
    """The least budget that the default planner meets."""
    try:
        best.solve(program, 0)
    except BudgetTooSmall as error:
        return error.needed
    return 0


def gaps() -> None:
    """Every shape at every budget."""
    lines = []
    for name, make in SHAPES.items():
        program = make()
        floor, top = least(program), referee.run(program, range(len(program.ops))).peak
        for percent in (20, 30, 40, 50, 60, 70, 80, 90):
            line = case(name, program, best, floor + (top - floor) * percent // 100, percent=percent)
            lines.append(line)
            print(json.dumps(line), flush=True)
    for low, high in ((20, 49), (50, 90), (20, 90)):
        some = [line["gap"] for line in lines if low <= line["percent"] <= high]
        print(json.dumps({"percent": [low, high], "median_gap": median(some), "worst_gap": max(some)}), flush=True)


def large() -> None:
    """Long steps, half-way between nothing and the plain step."""
    for name, make in LARGE.items():
        program = make()
        top = referee.run(program, range(len(program.ops))).peak
        for part in (30, 50, 80):
            print(json.dumps(case(name, program, priced, top * part // 100)), flush=True)


def table() -> None:
    """The gaps of lines on standard input, a row a program and a column a budget."""
    lines = [line for line in map(json.loads, sys.stdin) if "gap" in line]
    percents = sorted({line["percent"] for line in lines})
    print("| program | ops |" + "".join(f" {percent} % |" for percent in percents))
    print("|---|---|" + "---|" * len(percents))
    for name in dict.fromkeys(line["program"] for line in lines):
        row = {line["percent"]: line for line in lines if line["program"] == name}
        cells = "".join(f" {row[percent]['extra']:.2f}, {row[percent]['gap']:.2f} |" for percent in percents)
        print(f"| {name} | {row[percents[0]]['ops']} |{cells}")


if __name__ == "__main__":
    {"large": large, "table": table}.get("".join(sys.argv[1:]), gaps)()
