"""Draws extra time and bound against the budget, from the lines of `bench/planners.py budgets`:

python bench/curves.py < bench/results/budgets.jsonl > docs/methods/budgets.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

from growth import COLOURS, grid_line, words_at

Row = dict[str, Any]

DRAWN = ("gpt2-48", "llama-16", "resnet152", "unet", "vit-large", "densenet201")
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 860, 480, 60, 20, 190, 50
MOST = 50  # per cent of extra time shown; what is above is cut off


def draw(rows: Iterable[Row]) -> str:
    """The picture: the share of the plain step's peak across, extra time up, the bound dashed."""
    found = {row["program"]: row for row in rows if row.get("question") == "budgets"}

    def x(share: float) -> float:
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(percent: float) -> float:
        return round(HEIGHT - BOTTOM - min(percent, MOST) / MOST * (HEIGHT - TOP - BOTTOM), 1)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for tenth in range(0, 11, 2):
        lines += [grid_line(x(tenth / 10), y(0), x(tenth / 10), y(MOST))]
        lines.append(words_at(x(tenth / 10), HEIGHT - BOTTOM + 20, f"{10 * tenth} %", "middle"))
    for percent in range(0, MOST + 1, 10):
        lines += [
            grid_line(x(0), y(percent), x(1), y(percent)),
            words_at(LEFT - 8, y(percent) + 4, f"{percent} %", "end"),
        ]
    lines.append(
        words_at(x(0.5), HEIGHT - 8, "budget, of the plain step's peak (solid: extra time; dashed: bound)", "middle")
    )
    for number, name in enumerate(name for name in DRAWN if name in found):
        row, colour = found[name], COLOURS[number]
        shares = [row["least"] + (1 - row["least"]) * i / 19 for i in range(20)]
        for dash, take in (("", 0), (' stroke-dasharray="5 4"', 1)):
            heights = [extra - take * gap for extra, gap in zip(row["extra_percent"], row["gap_percent"])]
            way = " ".join(f"{x(share)},{y(percent)}" for share, percent in zip(shares, heights) if percent <= MOST)
            lines.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="1.8"{dash}/>')
        height, beside = TOP + 20 + 24 * number, WIDTH - RIGHT + 25
        lines.append(f'<circle cx="{beside}" cy="{height - 4}" r="4" fill="{colour}"/>')
        lines.append(words_at(beside + 12, height, name, "start"))
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(draw(map(json.loads, sys.stdin)))
