"""How long do the papers' planners and the exact ones take, and how does that grow with size?

    PYTHONPATH=src python bench/planners.py > bench/results/planners.jsonl     every case of every question
    PYTHONPATH=src python bench/planners.py rotor                              one question's cases
    PYTHONPATH=src python bench/planners.py rotor 3                            one case

One JSON line a case: what was asked, the seconds of the processor, the most memory the process had, and the answer, of
its lists the lengths only. Each case runs in a process of its own, and one that fails is a line with its error. Sizes
and times are drawn from fixed seeds. `bench/growth.py` draws how time grows, `bench/figures.py` makes the tables.
"""

from __future__ import annotations

import json
import platform
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise, product
from typing import Any

from lowtide import referee
from lowtide.errors import BudgetTooSmall
from lowtide.planners import best, closed_sets, exact_chain, exact_dag, lower_sets, min_peak, rotor
from lowtide.planners.chain import Chain
from lowtide.planners.chain_replay import ChainPlan
from lowtide.planners.dag import Dag
from lowtide.planners.lower_sets import Family, Prefer
from lowtide.planners.min_peak import Objective
from lowtide.planners.registry import PLANNERS
from lowtide.planners.sizes import Sizes
from lowtide.program import Program
from programs import load, names

Row = dict[str, Any]
Edges = list[tuple[int, int]]


def drawn_sizes(shape: str, n: int) -> Sizes:
    """A line of n layers: all equal, falling, or drawn evenly."""
    draw = random.Random(1)
    numbers = {
        "equal": lambda: [1] * n,
        "falling": lambda: range(n, 0, -1),
        "random": lambda: [draw.randint(0, 10**6) for _ in range(n)],
    }
    return Sizes(tuple(numbers[shape]()))


def drawn_chain(stages: int, seed: int = 1) -> Chain:
    """A chain with all numbers drawn evenly from 1 to 10^6, scratch from 1 to 10^5."""
    draw = random.Random(seed)

    def numbers(count: int, most: int = 10**6) -> tuple[int, ...]:
        return tuple(draw.randint(1, most) for _ in range(count))

    values = numbers(stages + 1)
    saved = tuple(value + beside for value, beside in zip(values[1:], numbers(stages)))
    scratch = numbers(stages, 10**5), numbers(stages, 10**5)
    return Chain(numbers(stages), numbers(stages), values, saved, numbers(stages + 1), *scratch)


def drawn_dag(seed: int, n: int, edges: Edges) -> Dag:
    """Sizes up to a gigabyte and times up to a millisecond, drawn."""
    draw = random.Random(seed)
    sizes = tuple(draw.randint(1, 10**9) for _ in range(n))
    times = tuple(draw.randint(1, 10**6) for _ in range(n))
    return Dag(sizes, times, tuple(sorted(set(edges))))


def line_of_values(n: int) -> Dag:
    """A straight line."""
    return drawn_dag(n, n, [(v, v + 1) for v in range(n - 1)])


def skips(n: int, each: float, span: int) -> Dag:
    """A line with `each` more edges a value, from at most `span` before it."""
    draw = random.Random(n)
    edges = [(v, v + 1) for v in range(n - 1)]
    for v in range(2, n):
        edges += [(draw.randrange(max(0, v - span), v), v) for _ in range(2) if draw.random() < each / 2]
    return drawn_dag(n, n, edges)


def branches(*lengths: int) -> Dag:
    """Lines of these lengths side by side between one source and one target."""
    edges: Edges = []
    last = sum(lengths) + 1
    first = 1
    for length in lengths:
        inner = range(first, first + length)
        edges += [(0, inner[0]), *pairwise(inner), (inner[-1], last)]
        first += length
    return drawn_dag(len(lengths), last + 1, edges)


def scattered(n: int, density: float) -> Dag:
    """Every edge with the same chance."""
    draw = random.Random(n)
    return drawn_dag(n, n, [(u, v) for v in range(n) for u in range(v) if draw.random() < density])


def densenet(*blocks: int, batch: int = 16, side: int = 112, stem: int = 64, growth: int = 32) -> Dag:
    """The values of torchvision's DenseNet of these blocks on images of 2 * side pixels, float32; 1 ns a byte."""
    sizes: list[int] = []
    edges: Edges = []

    def value(channels: int, side: int, *reads: int) -> int:
        edges.extend((u, len(sizes)) for u in reads)
        sizes.append(4 * batch * channels * side * side)
        return len(sizes) - 1

    def norm_relu(channels: int, side: int, read: int) -> int:
        return value(channels, side, value(channels, side, read))

    x = norm_relu(stem, side, value(stem, side))
    side //= 2
    x = value(stem, side, x)
    channels = stem
    for number, layers in enumerate(blocks):
        features = [x]
        for _ in range(layers):
            joined = value(channels, side, *features) if len(features) > 1 else x
            narrow = value(4 * growth, side, norm_relu(channels, side, joined))
            features.append(value(growth, side, norm_relu(4 * growth, side, narrow)))
            channels += growth
        x = norm_relu(channels, side, value(channels, side, *features))
        if number < len(blocks) - 1:
            channels //= 2
            x = value(channels, side // 2, value(channels, side, x))
            side //= 2
    x = value(channels, 1, x)
    value(1000, 1, x)
    return Dag(tuple(sizes), tuple(sizes), tuple(edges))


DAGS: dict[str, Callable[[int], Dag]] = {
    "line": line_of_values,
    "skips": lambda n: skips(n, 0.3, 10),
    "many skips": lambda n: skips(n, 1.2, 10),
    "far skips": lambda n: skips(n, 0.5, n),
    "four branches": lambda n: branches(*(n // 4 + (i > 1) for i in range(4))),
    "two branches": lambda n: branches(n // 2, n // 2),
    "DenseNet-201": lambda _: densenet(6, 12, 48, 32),
    "scattered": lambda n: scattered(n, 0.25),
}


def timed(call: Callable[[], Any]) -> tuple[Row, Any]:
    """Processor seconds, which other work on the machine disturbs less than the clock's; all of this is one thread."""
    start = time.process_time()
    answer = call()
    return {"cpu_seconds": round(time.process_time() - start, 3)}, answer


def on_sizes(n: int, shape: str, objective: str) -> Row:
    """A line of layers."""
    sizes = drawn_sizes(shape, n)
    seconds, found = timed(partial(min_peak.solve, sizes, objective=Objective(objective)))
    return {**seconds, "peak": found.peak, "kept": len(found.layers)}


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


def on_chain(n: int, share: float, slots: int | None) -> Row:
    """rotor on a drawn chain."""
    chain = drawn_chain(n)
    budget = budget_at(partial(rotor.solve, slots=2), chain, share)
    seconds, plan = timed(partial(rotor.solve, chain, budget, slots=slots))
    return {**seconds, "budget": budget, "overhead": overhead(chain, plan), "optimal": plan.optimal}


def on_chain_exactly(n: int, share: float, seed: int) -> Row:
    """The exact search, and how much slower rotor's plans are."""
    chain = drawn_chain(n, seed)
    budget = budget_at(rotor.solve, chain, share)
    seconds, plan = timed(partial(exact_chain.solve, chain, budget))
    persistent = rotor.solve(chain, budget)
    facts = {"overhead": overhead(chain, plan), "rotor_overhead": overhead(chain, persistent)}
    return {**seconds, "budget": budget, **facts}


def on_lower_sets(graph: str, n: int, family: str, of_least_peak: float | None, prefer: str = "time") -> Row:
    """A strategy within a multiple of the least peak; None asks for the least peak."""
    dag = DAGS[graph](n)
    solve = partial(lower_sets.solve, dag, family=Family(family), prefer=Prefer(prefer))
    budget = None if of_least_peak is None else int(_needed(solve) * of_least_peak)
    seconds, found = timed(lambda: _or_needed(solve, budget))
    row = {**seconds, "values": len(dag), "edges": len(dag.edges), "budget": budget}
    if isinstance(found, int):
        return {**row, "needed": found}
    return {**row, "time": found.time, "peak": found.peak, "blocks": len(found.sequence)}


def on_closed_sets(graph: str, n: int) -> Row:
    """The storage of least cost."""
    dag = DAGS[graph](n)
    seconds, found = timed(partial(closed_sets.solve, dag, None))
    share = round(found.cost / sum(dag.bytes[1:-1]), 4)
    facts = {"cost": found.cost, "share_of_inner_bytes": share, "stored": len(found.stored)}
    return {**seconds, "values": len(dag), "edges": len(dag.edges), **facts}


def on_dag_exactly(n: int, of_least_peak: float) -> Row:
    """The exact search on a drawn dag."""
    dag = DAGS["scattered"](n)
    solve = partial(exact_dag.solve, dag)
    budget = int(_needed(solve) * of_least_peak)
    seconds, found = timed(lambda: _or_needed(solve, budget))
    row = {**seconds, "edges": len(dag.edges), "budget": budget}
    return {**row, "needed": found} if isinstance(found, int) else {**row, "time": found.time, "peak": found.peak}


def on_program(program: str, planner: str) -> Row:
    """A captured step: the least budget, and at three more budgets the extra time promised and found."""
    step = load(program)
    solve = partial(PLANNERS[planner], step)
    seconds, needed = timed(lambda: _needed(solve))
    plain = PLANNERS["keep_all"](step, 2**60)
    row = {**seconds, "ops": len(step.ops), "least": round(needed / plain.peak, 4)}
    return row | {
        f"at {share}": _beside(step, solve, plain.time, needed, plain.peak, share) for share in (0.1, 0.3, 0.6)
    }


def on_budgets(program: str) -> Row:
    """A captured step at 20 budgets from the least to the plain step's peak: the default planner beside all others."""
    step = load(program)
    plain = PLANNERS["keep_all"](step, 2**60)
    ladder = best.ladder_of(step)
    seconds, least = timed(lambda: ladder.lowest.seen.peak)
    row: Row = {
        "ops": len(step.ops),
        "seconds_for_least": seconds["cpu_seconds"],
        "least": round(least / plain.peak, 4),
        "least_of_working_set": round(least / ladder.working_set.bytes, 4),
    }
    others = [name for name in PLANNERS if name not in ("best", "exact", "keep_all")]
    row["least_of_others"] = {name: round(_needed(partial(PLANNERS[name], step)) / plain.peak, 4) for name in others}
    budgets = [least + (plain.peak - least) * i // 19 for i in range(20)]
    points = []
    for budget in budgets:
        best.forget()
        cost, plan = timed(partial(best.solve, step, budget))
        outcome = referee.run(step, plan.runs)
        assert outcome.time == plan.time
        assert outcome.peak == plan.peak <= budget
        point = {"extra": plan.time - plain.time, "gap": plan.gap, "peak": plan.peak, "seconds": cost["cpu_seconds"]}
        points.append(point)
    shares = [round(100 * point["gap"] / plain.time, 3) for point in points]
    times, peaks = [point["extra"] for point in points], [point["peak"] for point in points]
    return row | {
        "plain_ns": plain.time,
        "extra_percent": [round(100 * time / plain.time, 3) for time in times],
        "gap_percent": shares,
        "seconds": [point["seconds"] for point in points],
        "monotone": times == sorted(times, reverse=True) and peaks == sorted(peaks),
        "faster_others": _faster(step, budgets, times, plain.time, others),
    }


def on_speed(program: str) -> Row:
    """A captured step: how long the default planner takes for a plan and its bound, and for a curve of thirty plans."""
    step = load(program)
    best.curve(load("vgg19"), 5)  # Compiled loops are loaded once a process, whatever the step.
    plain = PLANNERS["keep_all"](step, 2**60)
    least = best.ladder_of(step).lowest.seen.peak
    plans = []
    for share in SPEED_SHARES:
        best.forget()
        cost, _ = timed(partial(best.solve, step, least + int((plain.peak - least) * share)))
        plans.append(cost["cpu_seconds"])
    best.forget()
    cost, curve = timed(partial(best.curve, step, 30))
    shares = dict(zip(map(str, SPEED_SHARES), plans))
    mean = sum(plans) / len(plans)
    row = {"n": len(step.ops), "cpu_seconds": max(plans), "seconds_at": shares, "points": len(curve)}
    return row | {"curve_seconds": cost["cpu_seconds"], "curve_of_plan": round(cost["cpu_seconds"] / mean, 2)}


def _faster(step: Program, budgets: list[int], times: list[int], plain: int, others: list[str]) -> list[Row]:
    """Where another planner is faster than the default one, and by how much of the plain step's time; for long steps
    at every fourth budget.
    """
    found: list[Row] = []
    for name in others:
        plan = None
        for i in reversed(range(0, len(budgets), 1 if len(step.ops) <= LONG else 4)):
            if name in ("greedy", "priced", "nested") or plan is None or plan.peak > budgets[i]:
                try:
                    plan = PLANNERS[name](step, budgets[i])
                except BudgetTooSmall:
                    break
            if plan.time - plain < times[i]:
                share = 100 * (times[i] - (plan.time - plain)) / plain
                found.append({"planner": name, "point": i, "percent": round(share, 4)})
    return found


def _beside(step: Program, solve: Callable[[int], Any], plain: int, least: int, most: int, share: float) -> Row:
    """What a plan promised and what it takes, in extra time as a share of the plain step's and in bytes."""
    plan = solve(least + int(share * (most - least)))
    row: Row = {"extra": round(plan.time / plain - 1, 4), "peak": plan.peak}
    if plan.reckoned is not None:
        row |= {"promised_extra": round(plan.reckoned.time / plain - 1, 4), "promised_peak": plan.reckoned.peak}
    return row


def _needed(solve: Callable[[int], Any]) -> int:
    found = _or_needed(solve, 0)
    return found if isinstance(found, int) else 0


def _or_needed(solve: Callable[[int], Any], budget: int | None) -> Any:
    try:
        return solve(budget)  # type: ignore[arg-type]
    except BudgetTooSmall as error:
        return error.needed


LONG = 2000
SPEED_SHARES = (0.05, 0.2, 0.4, 0.6, 0.8)  # of the way from the least budget to the plain step's peak
SHAPES = ("equal", "falling", "random")
SHARES = (None, 0.9, 1.1, 1.3, 1.6, 2.0)

# What is asked, how it is answered, and with which facts: one case a row.
QUESTIONS: dict[str, tuple[Callable[..., Row], list[Row]]] = {
    "min_peak": (
        on_sizes,
        [
            *(
                {"n": n, "shape": shape, "objective": objective}
                for n, shape, objective in product(
                    (1000, 10_000, 100_000, 1_000_000), SHAPES, ("activations", "paper", "torch")
                )
            ),
            *(
                {"n": n, "shape": shape, "objective": objective}
                for n, shape, objective in product((400, 4000), SHAPES, ("sum", "reentrant"))
            ),
        ],
    ),
    "rotor": (
        on_chain,
        [
            *({"n": n, "share": 0.3, "slots": 500} for n in (10, 30, 50, 100, 150, 200, 300)),
            *({"n": n, "share": share, "slots": 500} for n, share in product((100, 300), (0.1, 0.6))),
            # What thinning the grid costs: the last one is exact.
            *({"n": 20, "share": 0.2, "slots": slots} for slots in (10, 30, 100, 500, 2000, 10_000, None)),
        ],
    ),
    "exact_chain": (
        on_chain_exactly,
        [
            {"n": n, "share": share, "seed": seed}
            for n, seed, share in product((4, 6, 8, 10, 12), (1, 2), (0.0, 0.1, 0.3))
        ],
    ),
    "lower_sets": (
        on_lower_sets,
        [
            *(
                {"graph": "skips", "n": n, "family": "pruned", "of_least_peak": 1.3}
                for n in (50, 100, 200, 300, 400, 600, 800, 1200)
            ),
            *(
                {"graph": graph, "n": 600, "family": "pruned", "of_least_peak": share}
                for graph, share in product(("line", "skips", "many skips"), SHARES)
            ),
            *({"graph": "DenseNet-201", "n": 706, "family": "pruned", "of_least_peak": share} for share in SHARES),
            {"graph": "many skips", "n": 600, "family": "pruned", "of_least_peak": 1.3, "prefer": "memory"},
            *({"graph": "four branches", "n": n, "family": "exact", "of_least_peak": 1.5} for n in (12, 20, 28, 38)),
            *(
                {"graph": "four branches", "n": 38, "family": "exact", "of_least_peak": share}
                for share in (None, 0.9, 1.1, 3.0)
            ),
            *(
                {"graph": "two branches", "n": 218, "family": "exact", "of_least_peak": share}
                for share in (None, 1.5, 3.0, 8.0)
            ),
        ],
    ),
    "closed_sets": (
        on_closed_sets,
        [
            *({"graph": graph, "n": n} for graph, n in product(("line", "far skips"), (100, 200, 400, 700, 1400))),
            {"graph": "DenseNet-201", "n": 706},
        ],
    ),
    "exact_dag": (
        on_dag_exactly,
        [{"n": n, "of_least_peak": share} for n, share in product((4, 5, 6, 7, 8), (0.9, 1.1, 1.3))],
    ),
    "budgets": (on_budgets, [{"program": name} for name in names()]),
    "speed": (on_speed, [{"program": name} for name in names()]),
    "programs": (
        on_program,
        [
            {"program": program, "planner": planner}
            for program, planner in product(
                ("resnet50", "unet", "vit-large", "gpt2-48", "llama-16", "densenet201", "t5-large", "llama-184"),
                ("sqrt", "min_peak", "rotor", "lower_sets", "closed_sets"),
            )
        ],
    ),
}


def measure(question: str, case: int) -> Row:
    """The line of one case."""
    answer, cases = QUESTIONS[question]
    row = {"command": _command(question, case), "question": question, **cases[case], **answer(**cases[case])}
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {**row, "megabytes": megabytes, "python": platform.python_version(), "machine": platform.machine()}


def _command(question: str, case: int) -> str:
    return f"PYTHONPATH=src python bench/planners.py {question} {case}"


def main() -> None:
    """One case here, or many, each in a process of its own."""
    if len(sys.argv) > 2:
        print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
        return
    for question in sys.argv[1:] or QUESTIONS:
        for case in range(len(QUESTIONS[question][1])):
            command = [sys.executable, __file__, question, str(case)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                error = done.stderr.strip().splitlines()[-1:] or [f"exit {done.returncode}"]
                print(json.dumps({"command": _command(question, case), "error": error[0]}), flush=True)
            else:
                print(done.stdout, end="", flush=True)


if __name__ == "__main__":
    main()
