"""How long do the dag planners take on graphs of the sizes they are made for?

    PYTHONPATH=src python bench/dags.py > bench/results/dags.jsonl     every case, each in a process of its own
    PYTHONPATH=src python bench/dags.py CASE                           one case

One JSON line a case: what was asked, the seconds it took by the clock and of the processor, the most memory the process
had, and the answer, of its lists the lengths only. A case that fails is a line with its error.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

from lowtide.planners.dag import Dag
from lowtide.solve.dag import SOLVERS

Edges = list[tuple[int, int]]


def drawn(seed: int, n: int, edges: Edges) -> Dag:
    """Sizes up to a gigabyte and times up to a millisecond, drawn."""
    random = Random(seed)
    sizes = tuple(random.randint(1, 10**9) for _ in range(n))
    times = tuple(random.randint(1, 10**6) for _ in range(n))
    return Dag(sizes, times, tuple(sorted(set(edges))))


def chain(n: int) -> Dag:
    return drawn(n, n, [(v, v + 1) for v in range(n - 1)])


def skips(n: int, each: float, span: int) -> Dag:
    """A chain with `each` more edges a value, from at most `span` before it."""
    random = Random(n)
    edges = [(v, v + 1) for v in range(n - 1)]
    for v in range(2, n):
        edges += [(random.randrange(max(0, v - span), v), v) for _ in range(2) if random.random() < each / 2]
    return drawn(n, n, edges)


def branches(lengths: tuple[int, ...]) -> Dag:
    """Chains of these lengths side by side between one source and one target."""
    edges: Edges = []
    last = sum(lengths) + 1
    first = 1
    for length in lengths:
        inner = range(first, first + length)
        edges += [(0, inner[0]), *pairwise(inner), (inner[-1], last)]
        first += length
    return drawn(len(lengths), last + 1, edges)


def densenet(blocks: tuple[int, ...], batch: int = 16, side: int = 112, stem: int = 64, growth: int = 32) -> Dag:
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


def scattered(n: int, density: float) -> Dag:
    random = Random(n)
    return drawn(n, n, [(u, v) for v in range(n) for u in range(v) if random.random() < density])


GRAPHS: dict[str, Callable[[], Dag]] = {
    "chain 600": lambda: chain(600),
    "skips 600": lambda: skips(600, 0.3, 10),
    "many skips 600": lambda: skips(600, 1.2, 10),
    "four branches": lambda: branches((9, 9, 10, 10)),
    "two branches": lambda: branches((109, 109)),
    "DenseNet-201": lambda: densenet((6, 12, 48, 32)),
    "chain 700": lambda: chain(700),
    "skips 700": lambda: skips(700, 0.5, 700),
    "eight": lambda: scattered(8, 0.25),
}

PRUNED, EXACT = {"family": "pruned"}, {"family": "exact"}

# Graph, method, options, and the budget as a multiple of the least peak; None asks for that.
CASES: list[tuple[str, str, dict[str, str], float | None]] = [
    *(
        (name, "lower_sets", PRUNED, share)
        for name in ("chain 600", "skips 600", "many skips 600", "DenseNet-201")
        for share in (None, 0.9, 1.1, 1.3, 1.6, 2.0)
    ),
    ("many skips 600", "lower_sets", {**PRUNED, "prefer": "memory"}, 1.3),
    *(("four branches", "lower_sets", EXACT, share) for share in (None, 0.9, 1.1, 1.5, 3.0)),
    *(("two branches", "lower_sets", EXACT, share) for share in (None, 1.5, 3.0, 8.0)),
    *((name, "closed_sets", {}, None) for name in ("DenseNet-201", "chain 700", "skips 700")),
    *(("eight", "exact", {}, share) for share in (None, 0.9, 1.1, 1.3)),
]


def measure(case: int) -> dict[str, Any]:
    name, method, options, share = CASES[case]
    dag = GRAPHS[name]()
    problem = dag.to_json()
    line: dict[str, Any] = {
        "command": f"PYTHONPATH=src python bench/dags.py {case}",
        "graph": name,
        "values": len(dag),
        "edges": len(dag.edges),
        "method": method,
        **options,
        "budget": None,
    }
    if share is not None:
        least = SOLVERS[method](problem, -1, {k: v for k, v in options.items() if k == "family"})["needed"]
        line |= {"budget": int(least * share), "of_least_peak": share}
    start, cpu = time.perf_counter(), time.process_time()
    answer = SOLVERS[method](problem, line["budget"], options)
    line["seconds"] = round(time.perf_counter() - start, 3)
    line["cpu_seconds"] = round(time.process_time() - cpu, 3)
    line["megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    if method == "closed_sets":
        line["share_of_inner_bytes"] = round(answer["cost"] / sum(dag.bytes[1:-1]), 4)
    line |= {key: len(entry) if isinstance(entry, list) else entry for key, entry in answer.items()}
    return line


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(int(sys.argv[1]))))
        return
    for case in range(len(CASES)):
        done = subprocess.run([sys.executable, __file__, str(case)], capture_output=True, text=True, check=False)
        if done.returncode:
            error = done.stderr.strip().splitlines()[-1:] or [f"exit {done.returncode}"]
            print(json.dumps({"command": f"PYTHONPATH=src python bench/dags.py {case}", "error": error[0]}), flush=True)
        else:
            print(done.stdout, end="", flush=True)


if __name__ == "__main__":
    main()
