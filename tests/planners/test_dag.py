"""The noun Dag, its step written out, and what `lowtide solve` lines about dags say."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide import referee
from lowtide.errors import InvalidProblem
from lowtide.planners import dag_step
from lowtide.planners.dag import Dag
from lowtide.solve.dag import SOLVERS
from tests.oracles import dags

CHAIN: dict[str, Any] = {"bytes": [4, 2, 1], "ns": [1, 2, 3], "edges": [[0, 1], [1, 2]]}


@given(dags.graphs(7))
def test_a_dag_prints_and_parses(graph: dags.Graph) -> None:
    dag = Dag(graph.bytes, graph.ns, graph.edges)
    assert Dag.from_json(json.loads(json.dumps(dag.to_json()))) == dag
    again = Dag.parse(str(dag))
    assert (again.bytes, again.ns, set(again.edges)) == (dag.bytes, dag.ns, set(dag.edges))
    assert Dag.parse(str(again)) == again


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"bytes": [4, -2, 1]}, "bytes", "bytes[1]: must be a whole number >= 0, found -2"),
        ({"bytes": [4, 2.0, 1]}, "bytes", "bytes[1]"),
        ({"bytes": [4, True, 1]}, "bytes", "bytes[1]"),
        ({"bytes": []}, "bytes", "at least one"),
        ({"bytes": 7}, "bytes", "must be a list"),
        ({"bytes": [2**53, 0, 0]}, "bytes", "adds up"),
        ({"ns": [1, 2]}, "ns", "2 numbers for 3 values"),
        ({"ns": ["1", 2, 3]}, "ns", "ns[0]"),
        ({"edges": [[0, 1], [2, 1]]}, "edges", "edges[1]: [2, 1] must go from a lower number to a higher one"),
        ({"edges": [[1, 1]]}, "edges", "edges[0]"),
        ({"edges": [[0, 3]]}, "edges", "leaves the values 0 to 2"),
        ({"edges": [[-1, 1]]}, "edges", "leaves"),
        ({"edges": [[0, 1], [1, 2], [0, 1]]}, "edges", "edges[2]: [0, 1] stands twice"),
        ({"edges": [[0, 1, 2]]}, "edges", "pair"),
        ({"edges": [[0, 1.0]]}, "edges", "whole numbers"),
        ({"edges": "01"}, "edges", "must be a list"),
        ({"times": [1]}, "times", "no such field"),
    ],
)
@pytest.mark.parametrize("method", sorted(SOLVERS))
def test_a_wrong_field_is_named(method: str, change: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InvalidProblem) as raised:
        SOLVERS[method]({**CHAIN, **change}, None, {})
    assert raised.value.field == field
    assert words in str(raised.value)


@pytest.mark.parametrize("field", ["bytes", "ns", "edges"])
def test_a_missing_field_is_named(field: str) -> None:
    with pytest.raises(InvalidProblem, match=f"{field}: the field is missing") as raised:
        Dag.from_json({name: row for name, row in CHAIN.items() if name != field})
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("method", "options", "field"),
    [
        ("lower_sets", {"family": "all"}, "family"),
        ("lower_sets", {"prefer": None}, "prefer"),
        ("lower_sets", {"slots": 3}, "slots"),
        ("closed_sets", {"family": "exact"}, "family"),
        ("exact", {"prefer": "time"}, "prefer"),
    ],
)
def test_a_wrong_option_is_named(method: str, options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidProblem) as raised:
        SOLVERS[method](CHAIN, None, options)
    assert raised.value.field == field


@pytest.mark.parametrize("method", sorted(SOLVERS))
@pytest.mark.parametrize("budget", [1.5, "4", True])
def test_a_wrong_budget_is_named(method: str, budget: Any) -> None:
    with pytest.raises(InvalidProblem) as raised:
        SOLVERS[method](CHAIN, budget, {})
    assert raised.value.field == "budget"


def test_answers_worked_by_hand() -> None:
    """The chain 4 → 2 → 1. In one block the formula counts 2 * 7, and all 6 ns again. With the blocks {0}, {1}, {2} it
    counts 2 * 4 + 2 ahead, then 4 kept + 2 * 2 + 1 ahead, then 6 kept + 2 * 1, and only value 2's 3 ns again. Between
    the ends lies value 1 alone, stored or in a piece.

    The step itself: fwd 0 | 4, fwd 1 | 6, fwd 2 | 7, bwd 2 reads value 2 | 4 + 2 + 1 + 1 = 8, bwd 1 | reads gradient 2
    and value 1, writes 2: 4 + 2 + 1 + 2 = 9, bwd 0 | value 0, gradients 1 and 0: 4 + 2 + 4 = 10.
    """
    assert SOLVERS["lower_sets"](CHAIN, None, {}) == {
        "feasible": True,
        "time": 3,
        "peak": 10,
        "liveness_peak": 10,
        "sequence": [[0], [0, 1], [0, 1, 2]],
    }
    assert SOLVERS["lower_sets"](CHAIN, 14, {"prefer": "memory"})["time"] == 6
    assert SOLVERS["lower_sets"](CHAIN, 9, {}) == {"feasible": False, "needed": 10}
    assert SOLVERS["closed_sets"](CHAIN, None, {})["cost"] == 2
    assert SOLVERS["closed_sets"](CHAIN, 1, {}) == {"feasible": False, "needed": 2}
    assert SOLVERS["exact"](CHAIN, None, {}) == {"feasible": True, "time": 0, "peak": 10}
    assert SOLVERS["exact"](CHAIN, 9, {}) == {"feasible": False, "needed": 10}


@pytest.mark.parametrize("method", sorted(SOLVERS))
@pytest.mark.parametrize("budget", [-(10**30), -1, 10**30])
def test_any_budget_is_understood(method: str, budget: int) -> None:
    answer = SOLVERS[method](CHAIN, budget, {})
    assert answer["feasible"] is (budget > 0)


@pytest.mark.parametrize("method", sorted(SOLVERS))
def test_one_value_is_a_dag(method: str) -> None:
    answer = SOLVERS[method]({"bytes": [3], "ns": [2], "edges": []}, None, {})
    assert answer["feasible"]
    if method != "closed_sets":
        assert answer["peak"] == 6


@settings(max_examples=300, deadline=None)
@given(dags.graphs(6), st.integers(0, 2**32))
def test_memory_is_what_the_referee_sees(graph: dags.Graph, seed: int) -> None:
    """On any valid runs, reruns of any op among them."""
    dag = Dag(graph.bytes, graph.ns, graph.edges)
    needs = dag_step.reads(dag)
    random = Random(seed)
    runs: list[int] = []
    while len(set(runs)) < len(needs):
        runs.append(random.choice([op for op, row in enumerate(needs) if set(row) <= set(runs)]))
    outcome = referee.run(dags.program(graph), dags.as_program_runs(graph, tuple(runs)))
    assert dag_step.timeline(dag, runs) == outcome.timeline
    assert dag_step.peak(dag, runs) == outcome.peak


def test_a_step_written_out() -> None:
    """Golden: keep 1 of the chain 0..4 cut after 1 and 3, and 3."""
    dag = Dag((1,) * 5, (1,) * 5, ((0, 1), (1, 2), (2, 3), (3, 4)))
    sequence = (frozenset({0, 1}), frozenset({0, 1, 2, 3}), frozenset(range(5)))
    assert dag_step.write_out(dag, sequence) == (0, 1, 2, 3, 4, 9, 2, 8, 7, 0, 6, 5)
