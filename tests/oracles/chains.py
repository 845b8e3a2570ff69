"""Chains by enumeration: a replay, the fastest persistent plan and the fastest plan of all. No planner's code is used.

A state of memory is a frozenset of names: ("a", l) a value, ("s", l) what stage l records, ("d", l) a gradient.
Both searches are Dijkstra's algorithm over all such states, with no bound, no order and no case left out.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any

from lowtide.planners.chain import Chain

Name = tuple[Any, ...]
Memory = frozenset[Name]
Step = tuple[str, int, int, Memory]  # words, nanoseconds, bytes held meanwhile, memory afterwards


def _bytes(chain: Chain, name: Name) -> int:
    kind, l = name[0], name[1]
    if kind == "a":
        return chain.value_bytes[l]
    return chain.saved_bytes[l - 1] if kind == "s" else chain.grad_bytes[l]


def _total(chain: Chain, memory: Memory) -> int:
    return sum(_bytes(chain, name) for name in memory)


def _run(chain: Chain, memory: Memory, word: str) -> Step | None:
    """One run by the rules, or None where its needs are not met."""
    L = chain.stages
    kind, _, number = word.partition(" ")
    l = int(number) if number else L + 1
    plain, recorded = ("a", l - 1), ("s", l - 1)
    if plain not in memory and (kind == "F_none" or recorded not in memory):
        return None
    if kind == "loss":
        made, gone, ns, scratch = ("d", L), {plain}, 0, chain.loss_scratch
    elif kind == "B":
        if ("d", l) not in memory or ("s", l) not in memory:
            return None
        made, gone = ("d", l - 1), {("d", l), ("s", l), ("a", l), plain}
        ns, scratch = chain.backward_ns[l - 1], chain.backward_scratch[l - 1]
    else:
        made = ("s", l) if kind == "F_all" else ("a", l)
        gone = {plain} if kind == "F_none" else set()
        ns, scratch = chain.forward_ns[l - 1], chain.forward_scratch[l - 1]
    during = _total(chain, memory) + _bytes(chain, made) + scratch
    return word, ns, during, (memory | {made}) - gone


def replay(chain: Chain, runs: list[str] | tuple[str, ...]) -> tuple[int, int]:
    """Time and peak of a sequence of runs; AssertionError where one cannot be carried out."""
    memory: Memory = frozenset({("a", 0)})
    time, peak = 0, _total(chain, memory)
    for word in runs:
        if word.startswith("drop"):
            _, kind, l = word.split()
            name = ("a" if kind == "value" else "s", int(l))
            assert name in memory, f"{word}: not held"
            memory -= {name}
            continue
        step = _run(chain, memory, word)
        assert step is not None, f"{word}: its needs are not met"
        _, ns, during, memory = step
        time, peak = time + ns, max(peak, during)
    assert ("d", 0) in memory, "the gradient of the input is missing"
    return time, peak


def _words(chain: Chain) -> list[str]:
    stages = range(1, chain.stages + 1)
    return ["loss", *(f"{kind} {l}" for kind in ("F_none", "F_ck", "F_all", "B") for l in stages)]


def _any_steps(chain: Chain, memory: Memory) -> Iterator[Step]:
    """Any run whose needs are met; any stored thing dropped."""
    for word in _words(chain):
        step = _run(chain, memory, word)
        if step is not None:
            yield step
    for name in memory:
        yield f"drop {name}", 0, 0, memory - {name}


def _persistent_steps(chain: Chain, memory: Memory) -> Iterator[Step]:
    """Runs that let nothing stored go before its backward use.

    A value is stored once a run has read it and left it where it is; it is then marked by a third entry in its name.
    F_none, which takes its input away, must not be given a stored one. Backward runs clear what they are allowed to.
    """
    plain_names = {name: name[:2] for name in memory}
    bare = frozenset(plain_names.values())
    stored = {name[:2] for name in memory if len(name) == 3}
    for word in _words(chain):
        step = _run(chain, bare, word)
        if step is None or (word == "loss" and any(name[0] == "d" for name in bare)):
            continue
        kind, _, l = word.partition(" ")
        read = ("a", int(l) - 1) if l else ("a", chain.stages)
        if kind == "F_none" and read in stored:
            continue
        now_stored = stored | {read} if kind in ("F_ck", "F_all") else stored
        marked = frozenset((*name, "stored") if name in now_stored else name for name in step[3])
        yield step[0], step[1], step[2], marked


Steps = Callable[[Chain, Memory], Iterator[Step]]


def _least_time(chain: Chain, budget: int, steps: Steps) -> int | None:
    start: Memory = frozenset({("a", 0)})
    if _total(chain, start) > budget:
        return None
    best, count = {start: 0}, 0
    queue: list[tuple[int, int, Memory]] = [(0, 0, start)]
    while queue:
        time, _, memory = heapq.heappop(queue)
        if any(name[:2] == ("d", 0) for name in memory):
            return time
        if time > best[memory]:
            continue
        for _, ns, during, after in steps(chain, memory):
            if during <= budget and time + ns < best.get(after, time + ns + 1):
                best[after] = time + ns
                count += 1
                heapq.heappush(queue, (time + ns, count, after))
    return None


def least_time(chain: Chain, budget: int) -> int | None:
    """Time of the fastest plan of all, None where none fits."""
    return _least_time(chain, budget, _any_steps)


def least_persistent_time(chain: Chain, budget: int) -> int | None:
    """Time of the fastest persistent plan, None where none fits."""
    return _least_time(chain, budget, _persistent_steps)
