"""The training step of a Dag written out as ops, and what memory holds while they run.

Of n values, op v makes value v and op n + v makes its gradient, value n + v, of the same bytes. A run is an op number.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowtide.planners.dag import Dag

Reads = tuple[tuple[int, ...], ...]


def reads(dag: Dag) -> Reads:
    """What each of the 2n ops reads; op k writes value k.

    fwd(v) reads what v is made from. bwd(v) reads the gradients of all that is made from v, and everything those were
    made from (v among it); at a value that nothing is made from, only that value.
    """
    n = len(dag)
    rows = list(dag.before)
    for v in range(n):
        if dag.after[v]:
            values = {u for s in dag.after[v] for u in dag.before[s]}
            rows.append((*sorted(values), *(n + s for s in dag.after[v])))
        else:
            rows.append((v,))
    return tuple(rows)


def write_out(dag: Dag, sequence: Sequence[frozenset[int]]) -> tuple[int, ...]:
    """The runs of a strategy of lower sets L_1 < ... < L_k = all.

    Forward goes block by block in index order. Backward goes from the last block to the first: the block's values that
    were not kept are made again in index order (the last block's are still there), then its gradients in reverse.
    """
    n = len(dag)
    blocks = [sorted(now - past) for past, now in zip((frozenset[int](), *sequence), sequence)]
    runs = [v for block in blocks for v in block]
    for block, lower in zip(reversed(blocks), reversed(sequence)):
        if lower is not sequence[-1]:
            runs += [v for v in block if all(s in lower for s in dag.after[v])]
        runs += [n + v for v in reversed(block)]
    return tuple(runs)


def timeline(dag: Dag, runs: Sequence[int]) -> tuple[int, ...]:
    """Bytes in memory during each run: a value is there from the run that writes it to its last read before it is
    written again, and what an op reads and writes is there while it runs.
    """
    n = len(dag)
    needs = reads(dag)
    change = [0] * (len(runs) + 1)
    last_use: dict[int, int] = {}
    for at in range(len(runs) - 1, -1, -1):
        op = runs[at]
        size = dag.bytes[op % n]
        change[at] += size
        change[last_use.pop(op, at) + 1] -= size
        for value in needs[op]:
            last_use.setdefault(value, at)
    held = 0
    line = []
    for difference in change[:-1]:
        held += difference
        line.append(held)
    return tuple(line)


def peak(dag: Dag, runs: Sequence[int]) -> int:
    """The most that `timeline` holds."""
    return max(timeline(dag, runs))
