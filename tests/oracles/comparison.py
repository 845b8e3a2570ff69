"""`lowtide solve` against enumeration: drawn problems, every method and option, and what disagrees.

An answer is right if it is what trying everything finds: the optimum within the budget, and a plan that attains it; or,
where nothing fits, the least budget at which something does.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from lowtide import solve
from lowtide.planners.chain import Chain
from tests.oracles import chains, dags, sizes

Fields = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """One method with its options.

    method    as `lowtide solve` knows it
    options   beside problem and budget
    draw      a problem and a budget
    wrong     from the line and the answer to what is wrong with it; empty where it is right
    """

    method: str
    options: Fields
    draw: Callable[[Random], tuple[Fields, int | None]]
    wrong: Callable[[Fields, Fields], str]

    def disagreements(self, cases: int, seed: int) -> Iterator[tuple[Fields, Fields, str]]:
        """Line, answer and what is wrong, of `cases` lines drawn from `seed`."""
        random = Random(seed)
        for _ in range(cases):
            problem, budget = self.draw(random)
            line = {"problem": problem, "budget": budget, **self.options}
            answer = ask(self.method, line)
            wrong = self.wrong(line, answer)
            if wrong:
                yield line, answer, wrong


def ask(method: str, line: Fields) -> Fields:
    """The answer of `lowtide solve` to one line."""
    out = io.StringIO()
    solve.run(method, [json.dumps(line).encode()], out, io.StringIO())
    answer: Fields = json.loads(out.getvalue())
    return answer


def judge(answer: Fields, budget: int | None, optimum: Callable[[int], int | None], found: int, enough: int) -> str:
    """What is wrong with an answer whose objective is `found`, given the optimum at any budget. `enough` is a budget at
    which nothing binds.
    """
    if "error" in answer:
        return str(answer["error"])
    best = optimum(enough if budget is None else budget)
    if answer["feasible"]:
        return "" if best == found else f"found {found}, and the optimum is {best}"
    if best is not None:
        return f"nothing found, and the optimum is {best}"
    needed = answer["needed"]
    if optimum(needed) is None or optimum(needed - 1) is not None:
        return f"{needed} is not the least budget"
    return ""


# Lines of sizes.


def draw_sizes(random: Random) -> tuple[Fields, int | None]:
    n = random.randint(1, 11)
    most = random.choice([1, 3, 9, 1000])
    numbers = [random.randint(0, most) for _ in range(n)]
    shape = random.random()
    if shape < 0.2:
        numbers.sort(reverse=True)
    elif shape < 0.3:
        numbers.sort()
    return {"bytes": numbers}, random.choice([None, random.randint(0, 2 * sum(numbers) + 1)])


def wrong_checkpoints(line: Fields, answer: Fields) -> str:
    numbers = tuple(line["problem"]["bytes"])
    objective = line.get("objective", "torch")
    least = sizes.least_peak(numbers, objective)
    if answer.get("feasible"):
        layers = tuple(answer["checkpoints"])
        if sizes.peak(numbers, layers, objective) != answer["peak"]:
            return "the checkpoints do not have the peak that is named"
        return "" if answer["peak"] == least <= (line["budget"] or least) else f"the least peak is {least}"
    return "" if answer.get("needed") == least > line["budget"] else f"the least peak is {least}: {answer}"


# Chains.


def draw_chain(stages: int, most: int) -> Callable[[Random], tuple[Fields, int | None]]:
    """Chains of up to so many stages; half of them with gradients that differ from their values and from each other."""

    def draw(random: Random) -> tuple[Fields, int | None]:
        L = random.randint(0, stages)
        pool = random.choice([range(most + 1), [0, 1, 2, 9], [1, 2]])

        def numbers(count: int) -> list[int]:
            return [random.choice(pool) for _ in range(count)]

        values = numbers(L + 1)
        problem: Fields = {
            "forward_ns": numbers(L),
            "backward_ns": numbers(L),
            "value_bytes": values,
            "saved_bytes": [value + beside for value, beside in zip(values[1:], numbers(L))],
        }
        if random.random() < 0.5:
            problem |= {"grad_bytes": numbers(L + 1), "loss_scratch": random.choice(pool)}
        if random.random() < 0.5:
            problem |= {"forward_scratch": numbers(L), "backward_scratch": numbers(L)}
        whole = sum(map(sum, (fact for fact in problem.values() if isinstance(fact, list))))
        return problem, random.choice([None, *(random.randint(0, whole // 2 + 3) for _ in range(4))])

    return draw


def wrong_chain(least_time: Callable[[Chain, int], int | None]) -> Callable[[Fields, Fields], str]:
    """Judges answers by an enumeration; of an answer not called optimal, only that it keeps its promises."""

    def wrong(line: Fields, answer: Fields) -> str:
        chain = Chain.from_json(line["problem"])
        enough = 4 * sum(map(sum, (chain.value_bytes, chain.saved_bytes, chain.grad_bytes, chain.forward_scratch)))
        enough += 4 * sum(chain.backward_scratch) + chain.loss_scratch + 1
        if answer.get("feasible"):
            if chains.replay(chain, answer["runs"]) != (answer["time"], answer["peak"]):
                return "a replay of the runs finds another time or peak"
            if line["budget"] is not None and answer["peak"] > line["budget"]:
                return "above the budget"
            if not answer["optimal"]:
                best = least_time(chain, enough if line["budget"] is None else line["budget"])
                return "" if best is not None and best <= answer["time"] else "better than the optimum"
        return judge(answer, line["budget"], lambda budget: least_time(chain, budget), answer.get("time", 0), enough)

    return wrong


# Dags.


def draw_dag(most: int, *, ends: bool = False) -> Callable[[Random], tuple[Fields, int | None]]:
    """Dags of up to so many values, sparse and dense, of several parts, sources and sinks unless `ends`."""

    def draw(random: Random) -> tuple[Fields, int | None]:
        n = random.randint(1, most)
        density = random.choice([0.15, 0.3, 0.5, 0.8])
        edges = {(u, v) for v in range(n) for u in range(v) if random.random() < density}
        if ends:
            edges |= {(random.randrange(v), v) for v in range(1, n) if not any(b == v for _, b in edges)}
            edges |= {(v, random.randrange(v + 1, n)) for v in range(n - 1) if not any(a == v for a, _ in edges)}
        numbers = random.choice([range(10), [0, 1], [1], [1, 2, 50]])
        size, time = ([random.choice(numbers) for _ in range(n)] for _ in range(2))
        problem = {"bytes": size, "ns": time, "edges": [list(edge) for edge in sorted(edges)]}
        return problem, random.choice([None, *(random.randint(0, 3 * sum(size) + 1) for _ in range(4))])

    return draw


def graph_of(problem: Fields) -> dags.Graph:
    return dags.Graph(tuple(problem["bytes"]), tuple(problem["ns"]), tuple(map(tuple, problem["edges"])))


def wrong_strategy(line: Fields, answer: Fields) -> str:
    graph = graph_of(line["problem"])
    family = dags.pruned_sets(graph) if line.get("family") == "pruned" else dags.lower_sets(graph)
    sign = -1 if line.get("prefer") == "memory" else 1
    costs = [dags.formula(graph, sequence) for sequence in dags.sequences(graph, family)]
    if answer.get("feasible"):
        sequence = tuple(frozenset(lower) for lower in answer["sequence"])
        if not set(sequence) <= set(family) or dags.formula(graph, sequence) != (answer["time"], answer["peak"]):
            return "the sequence is not of the family, or does not have the time and peak that are named"
    budget = line["budget"]
    if budget is None:
        budget = min(peak for _, peak in costs)

    def optimum(allowed: int) -> int | None:
        return min((sign * time for time, peak in costs if peak <= allowed), default=None)

    return judge(answer, budget, optimum, sign * answer.get("time", 0), budget)


def wrong_storage(line: Fields, answer: Fields) -> str:
    graph = graph_of(line["problem"])
    least = dags.least_cost(graph)
    if answer.get("feasible"):
        if dags.stored_cost(graph, frozenset(answer["stored"])) != answer["cost"]:
            return "the stored values do not have the cost that is named"
        return "" if answer["cost"] == least else f"the least cost is {least}"
    return "" if answer.get("needed") == least > line["budget"] else f"the least cost is {least}: {answer}"


def wrong_step(line: Fields, answer: Fields) -> str:
    graph = graph_of(line["problem"])
    step = dags.program(graph)
    plain = sum(graph.ns)
    enough = 4 * sum(graph.bytes) + 1

    def optimum(budget: int) -> int | None:
        found = dags.least_time(step, budget)
        return None if found is None else found - plain

    return judge(answer, line["budget"], optimum, answer.get("time", 0), enough)


OBJECTIVES = ("sum", "activations", "paper", "torch", "reentrant")

QUESTIONS: dict[str, Question] = {
    **{
        f"min_peak {objective}": Question("min_peak", {"objective": objective}, draw_sizes, wrong_checkpoints)
        for objective in OBJECTIVES
    },
    "rotor": Question("rotor", {}, draw_chain(4, 6), wrong_chain(chains.least_persistent_time)),
    "rotor longer": Question("rotor", {}, draw_chain(6, 3), wrong_chain(chains.least_persistent_time)),
    "rotor slots=4": Question("rotor", {"slots": 4}, draw_chain(4, 6), wrong_chain(chains.least_persistent_time)),
    "exact chain longer": Question("exact", {}, draw_chain(6, 3), wrong_chain(chains.least_time)),
    "exact chain": Question("exact", {}, draw_chain(4, 6), wrong_chain(chains.least_time)),
    **{
        f"lower_sets {family} {prefer}": Question(
            "lower_sets", {"family": family, "prefer": prefer}, draw_dag(6 if family == "exact" else 8), wrong_strategy
        )
        for family in ("exact", "pruned")
        for prefer in ("time", "memory")
    },
    "closed_sets": Question("closed_sets", {}, draw_dag(9, ends=True), wrong_storage),
    "exact dag": Question("exact", {}, draw_dag(4), wrong_step),
    "exact dag larger": Question("exact", {}, draw_dag(6), wrong_step),
}
