"""Makes docs/methods/budgets.md from the lines of `bench/planners.py budgets` and `speed`, and of `bench/optimum.py`:

cd bench/results && cat budgets.jsonl optimum.jsonl speed.jsonl | python ../budgets.py > ../../docs/methods/budgets.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from statistics import median
from typing import Any

Row = dict[str, Any]

HEAD = """# The default planner at twenty budgets

Made by `bench/budgets.py` from `bench/results/budgets.jsonl` (`PYTHONPATH=src python bench/planners.py budgets`),
`speed.jsonl` (the same with `speed`) and `optimum.jsonl` (`bench/optimum.py`). The steps are captured with the roofline
costs of an H100. Budgets lie evenly from the least that the default planner meets, 0 %, to the plain step's peak,
100 %; static bytes are not counted. Seconds are the processor's, of one thread.

![Extra time against budget](budgets.svg)
"""
SHOWN = (1, 4, 7, 10, 13, 16)  # Of the twenty budgets, those in the first table.


def draw(rows: Iterable[Row]) -> str:
    """The page."""
    rows = list(rows)
    steps = sorted((row for row in rows if row.get("question") == "budgets"), key=lambda row: row["ops"])
    return (
        "\n".join(
            [HEAD, *_times(steps), "", *_gaps(steps), "", *_least(steps), "", *_seconds(rows), "", *_optima(rows)]
        )
        + "\n"
    )


def _share(point: int) -> str:
    return f"{round(100 * point / 19)} %"


def _times(steps: list[Row]) -> list[str]:
    lines = [
        "## Extra time",
        "",
        "In per cent of the plain step's time; beside it the gap, what of it is not proven necessary.",
        "",
        "| step | ops | " + " | ".join(map(_share, SHOWN)) + " | seconds a plan |",
        "|---|---|" + "---|" * (len(SHOWN) + 1),
    ]
    for row in steps:
        cells = [f"{row['extra_percent'][i]:.2f}, {row['gap_percent'][i]:.2f}" for i in SHOWN]
        seconds = row["seconds"][:-1]
        cells.append(f"{median(seconds):.1f}, at most {max(seconds):.1f}")
        lines.append(f"| {row['program']} | {row['ops']} | {' | '.join(cells)} |")
    return lines


def _gaps(steps: list[Row]) -> list[str]:
    lines = ["## Gaps", "", "| budgets | median gap, % | worst gap, % | of step |", "|---|---|---|---|"]
    for name, begin in (("50 % and more", 10), ("20 % and more", 4), ("all", 0)):
        gaps = [(gap, row["program"]) for row in steps for gap in row["gap_percent"][begin:]]
        worst, step = max(gaps)
        lines.append(f"| {name} | {median(gap for gap, _ in gaps):.3f} | {worst:.3f} | {step} |")
    return lines


def _least(steps: list[Row]) -> list[str]:
    lines = [
        "## Least budgets, and the other planners",
        "",
        "The least budget as a share of the plain step's peak, and of the working set, below which no plan is",
        "possible; the least of any other planner; at how many of the twenty budgets another was faster, and by how",
        "much at most in per cent of the plain step's time (of steps of more than 2,000 ops at every fourth budget);",
        "whether more bytes were never slower and fewer never held more.",
        "",
        "| step | least | of the working set | least of another | another faster | by at most | monotone |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in steps:
        name, other = min(row["least_of_others"].items(), key=lambda item: item[1])
        faster = row["faster_others"]
        points, most = {found["point"] for found in faster}, max((found["percent"] for found in faster), default=0)
        lines.append(
            f"| {row['program']} | {row['least']:.4f} | {row['least_of_working_set']:.4f} | {other:.4f} ({name}) "
            f"| {len(points)} | {most:.3f} | {'yes' if row['monotone'] else 'no'} |"
        )
    return lines


def _seconds(rows: list[Row]) -> list[str]:
    lines = [
        "## Seconds",
        "",
        "For one plan with its bound, from nothing, at budgets so far of the way from the least to the plain step's",
        "peak; for a curve of thirty plans with theirs, and how many times the mean of those plans that is; memory is",
        "the process's, of which Python with its libraries is about 180 MiB. ([Growth with size](growth.svg).)",
        "",
    ]
    rows = sorted((row for row in rows if row.get("question") == "speed"), key=lambda row: row["n"])
    shares = list(rows[0]["seconds_at"]) if rows else []
    shown = " | ".join(f"{100 * float(share):.0f} %" for share in shares)
    lines += [f"| step | ops | {shown} | curve | of a plan | MiB |", "|---|---|" + "---|" * (len(shares) + 3)]
    for row in rows:
        plans = " | ".join(f"{row['seconds_at'][share]:.1f}" for share in shares)
        curve = f"{row['curve_seconds']:.1f} | {row['curve_of_plan']:.1f}"
        lines.append(f"| {row['program']} | {row['n']} | {plans} | {curve} | {row['megabytes']} |")
    return lines


def _optima(rows: list[Row]) -> list[str]:
    lines = [
        "## Against the optimum",
        "",
        "Small steps drawn at random, held against an exhaustive search over all memory states, backward in the",
        "program's order. Missed: a budget that some plan meets, and the planner refused.",
        "",
        "| seed | cases | with a plan | optimal | proven so | worst, % of plain | missed | bound above the optimum |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "proven_optimal" in row:
            facts = [row[name] for name in ("seed", "cases", "planned", "optimal", "proven_optimal")]
            facts += [row["worst_percent_of_plain"], row["missed"], row["bound_above_optimum"]]
            lines.append(f"| {' | '.join(map(str, facts))} |")
    return lines


if __name__ == "__main__":
    sys.stdout.write(draw(map(json.loads, sys.stdin)))
