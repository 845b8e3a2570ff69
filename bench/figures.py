"""Makes the tables of docs/methods/figures.md from the lines of `bench/planners.py` and `bench/comparison.py`:

cat bench/results/planners.jsonl bench/results/comparison.jsonl | python bench/figures.py > docs/methods/figures.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

Row = dict[str, Any]

HEAD = """# Figures

Made by `bench/figures.py` from `bench/results/planners.jsonl` (`bench/planners.py`) and
`bench/results/comparison.jsonl` (`bench/comparison.py`). Seconds are the processor's, of one thread; memory is the
process's, of which Python with its libraries is about 180 MiB.

![Seconds against size, both by powers of ten](growth.svg)
"""

# What was asked for, which lines show it, and what each may take: the slowest of the lines is shown.
LIMITS: list[tuple[str, str, Callable[[Row], bool]]] = [
    (
        "min_peak, a million layers, `torch` and `paper`",
        "2 s",
        lambda row: row["question"] == "min_peak" and row["n"] == 10**6 and row["objective"] != "activations",
    ),
    ("rotor, 100 stages, 500 slots", "5 s", lambda row: row["question"] == "rotor" and row["n"] == 100),
    ("rotor, 300 stages, 500 slots", "60 s", lambda row: row["question"] == "rotor" and row["n"] == 300),
    (
        "lower_sets, pruned, 600 values",
        "3 s",
        lambda row: row["question"] == "lower_sets" and row["family"] == "pruned" and row["n"] == 600,
    ),
    (
        "lower_sets, pruned, DenseNet-201 of 706 values",
        "",
        lambda row: row["question"] == "lower_sets" and row["graph"] == "DenseNet-201",
    ),
    (
        "lower_sets, exact, 12,000 lower sets",
        "120 s, 8 GB",
        lambda row: row["question"] == "lower_sets" and row["family"] == "exact" and row["n"] in (38, 218),
    ),
    (
        "closed_sets, 700 values",
        "30 s",
        lambda row: row["question"] == "closed_sets" and 700 <= row["n"] <= 706,
    ),
    ("exact, chain of 8", "", lambda row: row["question"] == "exact_chain" and row["n"] == 8),
    ("exact, dag of 8", "", lambda row: row["question"] == "exact_dag" and row["n"] == 8),
]


def draw(rows: Iterable[Row]) -> str:
    """The page."""
    rows = list(rows)
    timed = [row for row in rows if "question" in row]
    lines = [HEAD, "## Speed", "", "| case | asked for | seconds | MiB |", "|---|---|---|---|"]
    for name, limit, belongs in LIMITS:
        slowest = max(filter(belongs, timed), key=lambda row: row["cpu_seconds"])
        lines.append(f"| {name} | {limit} | {slowest['cpu_seconds']:.2f} | {slowest['megabytes']} |")
    lines += ["", *_programs([row for row in timed if row["question"] == "programs"])]
    lines += ["", *_comparison([row for row in rows if "disagreements" in row])]
    return "\n".join(lines) + "\n"


def _programs(rows: list[Row]) -> list[str]:
    """Captured steps: extra time at shares of the way from each planner's least to the plain step's peak."""
    lines = [
        "## On captured steps",
        "",
        "Seconds until the least budget is known; that budget as a share of the plain step's peak; and at budgets so",
        "far of the way from it to that peak the extra time, in per cent of the plain step's. In brackets what the",
        "method's own model promised: extra time, and its peak as a multiple of the peak that was found.",
        "",
        "| step | ops | planner | seconds | least | 10 % | 30 % | 60 % |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [_beside(row[f"at {share}"]) for share in (0.1, 0.3, 0.6)]
        facts = f"{row['cpu_seconds']:.2f} | {row['least']:.2f}"
        lines.append(f"| {row['program']} | {row['ops']} | {row['planner']} | {facts} | {' | '.join(cells)} |")
    return lines


def _beside(found: Row) -> str:
    extra = f"{100 * found['extra']:.1f}"
    if "promised_extra" not in found:
        return extra
    return f"{extra} ({100 * found['promised_extra']:.1f}, {found['promised_peak'] / found['peak']:.2f})"


def _comparison(rows: list[Row]) -> list[str]:
    """Cases and wrong answers by question."""
    lines = [
        "## Against enumeration",
        "",
        "Answers of `lowtide solve` to drawn problems, held against trying everything (`tests/oracles/`).",
        "",
        "| method | options | cases | wrong |",
        "|---|---|---|---|",
    ]
    for row in rows:
        options = " ".join(f"{name}={word}" for name, word in row["options"].items())
        lines.append(f"| {row['asked']} | {options} | {row['cases']} | {row['disagreements']} |")
    total, wrong = (sum(row[field] for row in rows) for field in ("cases", "disagreements"))
    return [*lines, f"| all | | {total} | {wrong} |"]


if __name__ == "__main__":
    sys.stdout.write(draw(map(json.loads, sys.stdin)))
