"""Draws how the planners' time grows with size, from the lines of `bench/planners.py`:

cat bench/results/planners.jsonl bench/results/speed.jsonl | python bench/growth.py > docs/methods/growth.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from math import ceil, floor, log10
from typing import Any

Row = dict[str, Any]
Points = list[tuple[int, float]]

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 860, 480, 70, 20, 250, 50
LEAST = 0.001  # seconds: what the lines count in
COLOURS = ("#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#b7791f", "#16697a", "#7f3b08", "#555555", "#111111")

# What is drawn: a name, and which lines belong to it. Of several lines of one size the slowest counts.
SERIES: dict[str, Callable[[Row], bool]] = {
    "min_peak, torch": lambda row: row["question"] == "min_peak" and row["objective"] == "torch",
    "min_peak, paper": lambda row: row["question"] == "min_peak" and row["objective"] == "paper",
    "rotor, 500 slots": lambda row: row["question"] == "rotor" and row["slots"] == 500 and row["share"] == 0.3,
    "lower_sets, pruned": lambda row: row["question"] == "lower_sets" and _is_growth(row, "skips"),
    "lower_sets, exact": lambda row: row["question"] == "lower_sets" and _is_growth(row, "four branches"),
    "closed_sets": lambda row: row["question"] == "closed_sets" and row["graph"] == "far skips",
    "exact, chain": lambda row: row["question"] == "exact_chain",
    "exact, dag": lambda row: row["question"] == "exact_dag",
    "best, a plan and its bound": lambda row: row["question"] == "speed",
}


def _is_growth(row: Row, graph: str) -> bool:
    return row["graph"] == graph and row["of_least_peak"] in (1.3, 1.5) and "prefer" not in row


def series(rows: Iterable[Row]) -> dict[str, Points]:
    """For each name the sizes and the seconds, by size."""
    rows = [row for row in rows if "question" in row]
    found: dict[str, Points] = {}
    for name, belongs in SERIES.items():
        slowest: dict[int, float] = {}
        for row in filter(belongs, rows):
            slowest[row["n"]] = max(slowest.get(row["n"], LEAST), row["cpu_seconds"])
        found[name] = sorted(slowest.items())
    return found


def draw(rows: Iterable[Row]) -> str:
    """The picture: both axes by powers of ten."""
    found = series(rows)
    points = [point for line in found.values() for point in line]
    x_ends = 0, ceil(log10(max(n for n, _ in points)))
    y_ends = floor(log10(LEAST)), ceil(log10(max(seconds for _, seconds in points)))

    def x(power: float) -> float:
        return round(LEFT + (power - x_ends[0]) / (x_ends[1] - x_ends[0]) * (WIDTH - LEFT - RIGHT), 1)

    def y(power: float) -> float:
        return round(HEIGHT - BOTTOM - (power - y_ends[0]) / (y_ends[1] - y_ends[0]) * (HEIGHT - TOP - BOTTOM), 1)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for power in range(x_ends[0], x_ends[1] + 1):
        lines.append(grid_line(x(power), y(y_ends[0]), x(power), y(y_ends[1])))
        lines.append(words_at(x(power), HEIGHT - BOTTOM + 20, f"{10**power:,}", "middle"))
    for power in range(y_ends[0], y_ends[1] + 1):
        lines.append(grid_line(x(x_ends[0]), y(power), x(x_ends[1]), y(power)))
        lines.append(words_at(LEFT - 8, y(power) + 4, f"{10.0**power:g} s", "end"))
    lines.append(words_at(x(sum(x_ends) / 2), HEIGHT - 8, "layers, stages, values or ops", "middle"))
    for number, (name, line) in enumerate(found.items()):
        colour = COLOURS[number]
        places = [(x(log10(n)), y(log10(seconds))) for n, seconds in line]
        way = " ".join(f"{a},{b}" for a, b in places)
        lines.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="2"/>')
        lines += [f'<circle cx="{a}" cy="{b}" r="3" fill="{colour}"/>' for a, b in places]
        height = TOP + 20 + 24 * number
        beside = WIDTH - RIGHT + 25
        lines.append(f'<circle cx="{beside}" cy="{height - 4}" r="4" fill="{colour}"/>')
        lines.append(words_at(beside + 12, height, name, "start"))
    return "\n".join([*lines, "</svg>"]) + "\n"


def grid_line(*ends: float) -> str:
    a, b, c, d = ends
    return f'<line x1="{a}" y1="{b}" x2="{c}" y2="{d}" stroke="#dddddd"/>'


def words_at(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{words}</text>'


if __name__ == "__main__":
    sys.stdout.write(draw(map(json.loads, sys.stdin)))
