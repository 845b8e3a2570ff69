"""greedy: segments, and then whatever costs most to make again for the bytes it takes is kept, as long as it fits."""

from __future__ import annotations

from lowtide.plan import Plan
from lowtide.planners.promise import promise, too_small
from lowtide.planners.replay import replay
from lowtide.planners.rerun import expand
from lowtide.planners.sqrt import crossing, cuts
from lowtide.planners.step import Step
from lowtide.program import Program


def solve(program: Program, budget: int) -> Plan:
    """Fastest plan found that keeps the boundaries of some segments and the values dearest for their bytes.

    For each number of segments, a power of two, the values that cross them are kept; then the others are taken by
    nanoseconds of their own op per byte, dearest first, and as many kept as fit, found by bisection. The plain step is
    tried first. Nothing is claimed: the peak need not grow with what is kept, so bisection may stop early.
    Time O(n log^3 n).
    """
    step = Step.of(program)
    plain = range(len(program.ops))
    if replay(program, plain).peak <= budget:
        return promise(program, plain, budget, planner="greedy", searched="nothing needs to run again")
    dear = _by_price(step)
    found: list[tuple[int, int, list[int]]] = []
    narrowest: tuple[int, list[int]] | None = None
    segments = 1
    while segments <= max(1, step.boundary):
        base = crossing(step, cuts(step, segments)) if segments > 1 else set()
        low, high = 0, len(dear)
        runs = expand(step, base)
        seen = replay(program, runs)
        if narrowest is None or seen.peak < narrowest[0]:
            narrowest = seen.peak, runs
        best = (seen.time, seen.peak, runs) if seen.peak <= budget else None
        while best and low < high:
            middle = (low + high + 1) // 2
            runs = expand(step, base.union(dear[:middle]))
            seen = replay(program, runs)
            if seen.peak <= budget:
                low, best = middle, min(best, (seen.time, seen.peak, runs))
            else:
                high = middle - 1
        if best:
            found.append(best)
        segments *= 2
    if not found:
        assert narrowest is not None
        raise too_small(program, narrowest[1], budget, planner="greedy")
    runs = min(found)[2]
    return promise(program, runs, budget, planner="greedy", searched="segments, and the dearest values for their bytes")


def _by_price(step: Step) -> list[int]:
    """Forward values that backward may want, the dearest to make again for its bytes first."""
    ops, values = step.program.ops, step.program.values
    wanted = [v for v, made in enumerate(step.forward) if made and not step.held[v] and values[v].bytes]
    price = {v: ops[step.writer[v]].ns / sum(values[w].bytes for w in step.writes[step.writer[v]]) for v in wanted}
    return sorted(wanted, key=lambda v: -price[v])
