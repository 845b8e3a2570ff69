"""exact on a dag against every short sequence of runs, and against another search."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide import referee
from lowtide.errors import BudgetTooSmall, InvalidProblem
from lowtide.planners import dag_step, exact_dag, lower_sets
from lowtide.planners.dag import Dag
from tests.oracles import dags


def dag_of(graph: dags.Graph) -> Dag:
    return Dag(graph.bytes, graph.ns, graph.edges)


def check(graph: dags.Graph, found: exact_dag.Optimum) -> None:
    """The promise: the runs are valid and do what is said of them."""
    outcome = referee.run(dags.program(graph), dags.as_program_runs(graph, found.runs))
    assert (outcome.peak, outcome.time) == (found.peak, found.time + sum(graph.ns))


@settings(max_examples=40, deadline=None)
@given(dags.graphs(4), st.integers(0, 12))
def test_an_optimum_is_the_least(graph: dags.Graph, room: int) -> None:
    """At the least budget, above it and just below it."""
    step, dag, total = dags.program(graph), dag_of(graph), sum(graph.ns)
    least = dags.least_peak(step)
    assert exact_dag.least_peak(dag) == least
    tight = exact_dag.solve(dag, least)
    check(graph, tight)
    assert (tight.peak, tight.time + total) == (least, dags.least_time(step, least))
    loose = exact_dag.solve(dag, least + room)
    check(graph, loose)
    assert loose.peak <= least + room
    assert loose.time + total == dags.least_time(step, least + room)
    if loose.peak > least:
        again = dags.least_time(step, loose.peak - 1)
        assert again is not None
        assert again > loose.time + total
    with pytest.raises(BudgetTooSmall) as raised:
        exact_dag.solve(dag, least - 1)
    assert (raised.value.budget, raised.value.needed) == (least - 1, least)


@pytest.mark.parametrize("edges", [((0, 1), (1, 2)), ((0, 1), (0, 2)), ((0, 2), (1, 2)), ((0, 1), (0, 2), (1, 2))])
def test_no_short_sequence_is_better(edges: tuple[tuple[int, int], ...]) -> None:
    """Every sequence of up to eight runs of three values, as the referee sees it."""
    random = Random(len(edges) * 100 + sum(map(sum, edges)))
    sizes = tuple(random.randint(1, 9) for _ in range(3))
    graph = dags.Graph(sizes, (3, 5, 7), edges)
    step, dag = dags.program(graph), dag_of(graph)
    least_time: dict[int, int] = {}
    for runs in dags.short_runs(step, 8):
        outcome = referee.run(step, runs)
        least_time[outcome.peak] = min(outcome.time, least_time.get(outcome.peak, outcome.time))
    assert min(least_time) == exact_dag.least_peak(dag)
    for budget in least_time:
        best = min(time for peak, time in least_time.items() if peak <= budget)
        assert exact_dag.solve(dag, budget).time == best - sum(graph.ns)


@settings(max_examples=15, deadline=None)
@given(dags.graphs(6, least=4))
def test_no_strategy_of_lower_sets_is_better(graph: dags.Graph) -> None:
    """And more memory is never slower."""
    dag = dag_of(graph)
    tight = exact_dag.solve(dag, exact_dag.least_peak(dag))
    check(graph, tight)
    budgets = [tight.peak + 3 * step for step in range(3)]
    times = [exact_dag.solve(dag, budget).time for budget in budgets]
    assert times == sorted(times, reverse=True)
    strategy = lower_sets.solve(dag, None)
    last = strategy.sequence[-1] - (strategy.sequence[-2] if len(strategy.sequence) > 1 else frozenset())
    reruns = strategy.time - sum(dag.ns[v] for v in last)
    assert tight.peak <= strategy.liveness_peak
    assert exact_dag.solve(dag, strategy.liveness_peak).time <= reruns


def test_a_gradient_made_again_can_save_memory() -> None:
    """Witness: with each bwd run once, this step needs 21 bytes. The gradient of value 3 is made twice in 19."""
    graph = dags.Graph((1, 8, 3, 2), (1, 1, 1, 1), ((0, 1), (0, 3), (1, 2), (2, 3)))
    found = exact_dag.solve(dag_of(graph), 19)
    check(graph, found)
    assert found.peak == exact_dag.least_peak(dag_of(graph)) == 19
    assert found.runs.count(4 + 3) == 2
    assert dags.least_peak(dags.program(graph), gradients_again=False) == 21


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (3, "+6: 0 1 2 3 4 4' 3' 0 1 2 2' 0 1 1' 0 0'"),
        (4, "+2: 0 1 2 3 4 4' 3' 2 2' 1' 0 0'"),
        (5, "+1: 0 1 2 3 4 4' 3' 2' 1' 0 0'"),
        (6, "+0: 0 1 2 3 4 4' 3' 2' 1' 0'"),
    ],
)
def test_optima_of_a_chain(budget: int, words: str) -> None:
    """Golden: five equal values in a row. A number is a fwd, a number with ' a bwd."""
    dag = Dag((1,) * 5, (1,) * 5, tuple((v, v + 1) for v in range(4)))
    found = exact_dag.solve(dag, budget)
    assert dag_step.peak(dag, found.runs) == found.peak == budget
    runs = " ".join(str(op) if op < 5 else f"{op - 5}'" for op in found.runs)
    assert f"+{found.time}: {runs}" == words


def test_a_budget_too_small_says_what_is_needed() -> None:
    with pytest.raises(BudgetTooSmall, match="within 9 bytes; the least peak is 10"):
        exact_dag.solve(Dag((4, 2, 1), (1, 2, 3), ((0, 1), (1, 2))), 9)


def test_large_dags_are_refused() -> None:
    with pytest.raises(InvalidProblem, match="at most 8 values, found 9") as raised:
        exact_dag.solve(Dag((1,) * 9, (1,) * 9, ()), None)
    assert raised.value.field == "bytes"


def test_eight_values_are_answered() -> None:
    """The longest chain taken: with fewer bytes every value is made again and again."""
    dag = Dag((1,) * 8, (1,) * 8, tuple((v, v + 1) for v in range(7)))
    assert exact_dag.least_peak(dag) == 3
    assert exact_dag.solve(dag, 3).peak == 3
    assert (exact_dag.solve(dag, None).time, exact_dag.solve(dag, None).peak) == (0, 9)
    assert [exact_dag.solve(dag, budget).time for budget in (9, 8, 6)] == [0, 1, 3]
