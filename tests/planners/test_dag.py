"""The noun Dag, and its step written out."""

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
    ("change", "message"),
    [
        ({"bytes": [4, -2, 1]}, "bytes: entry 1 is -2, not a whole number >= 0"),
        ({"bytes": [4, 2.0, 1]}, "bytes: entry 1 is 2.0, not a whole number >= 0"),
        ({"bytes": [4, True, 1]}, "bytes: entry 1 is true, not a whole number >= 0"),
        ({"bytes": []}, "bytes: there must be at least one value"),
        ({"bytes": 7}, "bytes: 7 is not a list of whole numbers"),
        ({"bytes": [2**53, 0, 0]}, f"bytes: adds up to {2**53}, more than {2**53 - 1}"),
        ({"ns": [1, 2]}, "ns: length 2, not 3"),
        ({"ns": ["1", 2, 3]}, 'ns: entry 0 is "1", not a whole number >= 0'),
        ({"ns": [1, 2**53, 3]}, f"ns: adds up to {2**53 + 4}, more than {2**53 - 1}"),
        (
            {"edges": [[0, 1], [2, 1]]},
            "edges: entry 1 is [2, 1], which does not go from a lower number to a higher one",
        ),
        ({"edges": [[1, 1]]}, "edges: entry 0 is [1, 1], which does not go from a lower number to a higher one"),
        ({"edges": [[0, 3]]}, "edges: entry 0 is [0, 3], and the values are 0 to 2"),
        ({"edges": [[-1, 1]]}, "edges: entry 0 is [-1, 1], and the values are 0 to 2"),
        ({"edges": [[0, 1], [1, 2], [0, 1]]}, "edges: entry 2 is [0, 1], which is there twice"),
        ({"edges": [[0, 1, 2]]}, "edges: entry 0 is [0, 1, 2], not a pair [u, v]"),
        ({"edges": [5]}, "edges: entry 0 is 5, not a pair [u, v]"),
        ({"edges": ["01"]}, 'edges: entry 0 is "01", not a pair [u, v]'),
        ({"edges": [[0, 1.0]]}, "edges: entry 0 is [0, 1.0], not a pair of whole numbers"),
        ({"edges": "01"}, 'edges: "01" is not a list of pairs [u, v]'),
        ({"edges": {"0": 1}}, 'edges: {"0": 1} is not a list of pairs [u, v]'),
        ({"times": [1]}, "times: there is no such field (known: bytes, ns, edges)"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidProblem) as caught:
        Dag.from_json(CHAIN | change)
    assert str(caught.value) == message
    assert caught.value.field == next(iter(change))


@pytest.mark.parametrize("field", ["bytes", "ns", "edges"])
def test_a_missing_field_is_named(field: str) -> None:
    with pytest.raises(InvalidProblem, match=f"{field}: missing") as caught:
        Dag.from_json({name: row for name, row in CHAIN.items() if name != field})
    assert caught.value.field == field


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
