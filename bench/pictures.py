"""Draws what two plans of captured steps do, for the pages of the planners:

PYTHONPATH=src python bench/pictures.py prices unet 35 > docs/methods/priced.svg
PYTHONPATH=src python bench/pictures.py segments gpt2-48 14 > docs/methods/nested.svg

`prices` shows memory over time in the plain step and in a plan, and under it what a byte costs at each moment of
backward; `segments` shows which op of the forward pass, or its backward, runs when. The number is the budget in per
cent of the plain step's peak.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from growth import COLOURS, grid_line, words_at
from lowtide import referee
from lowtide.planners import nested, priced
from lowtide.planners.bound import INSTANTS
from lowtide.planners.prices import Relaxed
from lowtide.planners.step import Step
from lowtide.program import Program
from programs import load

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 860, 460, 60, 20, 20, 50
PRICES = 110  # height of the lower panel
POINTS = 600  # places across at which memory is drawn: the most that is there between two of them
Places = list[tuple[float, float]]


def prices(program: Program, percent: int) -> str:
    """Memory in the plain step and in the plan of `priced`, and the prices."""
    step = Step.of(program)
    plain = referee.run(program, range(len(program.ops)))
    budget = plain.peak * percent // 100
    runs = priced.solve(program, budget).runs
    planned = referee.run(program, runs)
    rent = _rent(step, budget)
    floor = HEIGHT - BOTTOM - PRICES - 20

    def x(ns: float) -> float:
        return round(LEFT + ns / planned.time * (WIDTH - LEFT - RIGHT), 1)

    def y(share: float) -> float:
        return round(floor - share * (floor - TOP), 1)

    lines = _paper()
    for tenth in range(0, 11, 2):
        lines += [grid_line(LEFT, y(tenth / 10), WIDTH - RIGHT, y(tenth / 10))]
        lines.append(words_at(LEFT - 8, y(tenth / 10) + 4, f"{10 * tenth} %", "end"))
    lines.append(_dashed(LEFT, y(percent / 100), WIDTH - RIGHT, y(percent / 100)))
    for order, outcome, colour in (
        (range(len(program.ops)), plain, COLOURS[7]),
        (runs, planned, COLOURS[0]),
    ):
        ends = program.arrays.ns[list(order)].cumsum()
        shares = np.array(outcome.timeline) / plain.peak
        lines.append(_way([(x(at), y(share)) for at, share in _thinned(ends, shares, planned.time)], colour))
    begins = program.arrays.ns[list(runs)].cumsum() - program.arrays.ns[list(runs)]
    base = HEIGHT - BOTTOM
    moments = [at for at, op in enumerate(runs) if op >= step.boundary]
    for at, price in zip(moments, rent):
        if price > 0:
            height = round(PRICES * price / max(rent), 1)
            lines.append(
                f'<rect x="{x(begins[at])}" y="{base - height}" width="2.5" height="{height}" fill="{COLOURS[1]}"/>'
            )
    lines.append(grid_line(LEFT, base, WIDTH - RIGHT, base))
    lines.append(words_at(WIDTH - RIGHT, TOP + 16, "memory: plain (grey) and in a budget (blue)", "end"))
    lines.append(words_at(WIDTH - RIGHT, base - PRICES + 12, "price of a byte at each moment of backward", "end"))
    return _finished(lines)


def segments(program: Program, percent: int) -> str:
    """Which op runs when, in the plan of `nested`."""
    step = Step.of(program)
    budget = referee.run(program, range(len(program.ops))).peak * percent // 100
    runs = nested.solve(program, budget).runs
    ends = program.arrays.ns[list(runs)].cumsum()
    belongs = _belongs(step)

    def x(ns: float) -> float:
        return round(LEFT + ns / ends[-1] * (WIDTH - LEFT - RIGHT), 1)

    def y(op: int) -> float:
        return round(HEIGHT - BOTTOM - op / step.boundary * (HEIGHT - TOP - BOTTOM), 1)

    lines = _paper()
    for quarter in range(5):
        op = step.boundary * quarter // 4
        lines += [grid_line(LEFT, y(op), WIDTH - RIGHT, y(op)), words_at(LEFT - 8, y(op) + 4, str(op), "end")]
    ran: set[int] = set()
    begin = 0
    while begin < len(runs):
        kind = _kind(step, runs[begin], ran)
        end = begin
        while end < len(runs) and _kind(step, runs[end], ran) == kind and (end == begin or _follows(runs, end, kind)):
            ran.add(runs[end])
            end += 1
        places = [(x(ends[at]), y(belongs[runs[at]])) for at in range(begin, end)]
        first = (x(ends[begin] - program.arrays.ns[runs[begin]]), places[0][1])
        lines.append(_way(_few([first, *places]), COLOURS[kind]))
        begin = end
    for number, name in enumerate(("first run", "backward", "run again")):
        lines.append(f'<circle cx="{LEFT + 16}" cy="{TOP + 12 + 22 * number}" r="4" fill="{COLOURS[number]}"/>')
        lines.append(words_at(LEFT + 28, TOP + 16 + 22 * number, name, "start"))
    lines.append(words_at((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "time (up: ops of the forward pass)", "middle"))
    return _finished(lines)


def _rent(step: Step, budget: int) -> list[float]:
    """The price at each moment, at the dear ones of which the relaxation is told."""
    relaxed = Relaxed.of(step)
    found = relaxed.solve(budget)
    assert found is not None
    dear = [int(t) for t in np.argsort(-found.rent)[:INSTANTS] if found.rent[t] > 0]
    told = Relaxed.of(step, dear).solve(budget)
    assert told is not None
    return told.rent.tolist()


def _belongs(step: Step) -> list[int]:
    """Per op, the forward op at whose height it is drawn: for a backward op the last one whose result it reads."""
    found = list(range(step.boundary))
    for op in range(step.boundary, len(step.reads)):
        made = [step.writer[v] for v in step.reads[op] if step.forward[v]]
        found.append(max(made, default=found[-1]) if op > step.boundary else step.boundary - 1)
    return found


def _kind(step: Step, op: int, ran: set[int]) -> int:
    return 1 if op >= step.boundary else 2 if op in ran else 0


def _follows(runs: Sequence[int], at: int, kind: int) -> bool:
    return kind == 1 or runs[at] > runs[at - 1]


def _thinned(ends: np.ndarray, shares: np.ndarray, longest: int) -> Places:
    """The highest share in each of many short times."""
    places: Places = []
    windows = (ends * POINTS // (longest + 1)).tolist()
    for at, window in enumerate(windows):
        if places and window == windows[at - 1]:
            places[-1] = (float(ends[at]), max(places[-1][1], float(shares[at])))
        else:
            places.append((float(ends[at]), float(shares[at])))
    return places


def _few(places: Places) -> Places:
    """The same way with fewer places: those less than half a point apart are left out."""
    kept = places[:1]
    for place in places[1:-1]:
        if abs(place[0] - kept[-1][0]) + abs(place[1] - kept[-1][1]) > 0.5:
            kept.append(place)
    return [*kept, places[-1]]


def _paper() -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]


def _way(places: Places, colour: str) -> str:
    points = " ".join(f"{a},{b}" for a, b in places)
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def _dashed(*ends: float) -> str:
    a, b, c, d = ends
    return f'<line x1="{a}" y1="{b}" x2="{c}" y2="{d}" stroke="{COLOURS[0]}" stroke-dasharray="6 4"/>'


def _finished(lines: list[str]) -> str:
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    draw = {"prices": prices, "segments": segments}[sys.argv[1]]
    sys.stdout.write(draw(load(sys.argv[2]), int(sys.argv[3])))
