"""lower_sets against every increasing sequence of lower sets."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide import referee
from lowtide.errors import BudgetTooSmall, InvalidProblem
from lowtide.planners import dag_step, lower_set_bound, lower_set_family, lower_sets
from lowtide.planners.dag import Dag
from lowtide.planners.lower_set_bound import bounds
from lowtide.planners.lower_sets import Family, Prefer, Strategy
from tests.oracles import dags

FAMILIES = {Family.EXACT: dags.lower_sets, Family.PRUNED: dags.pruned_sets}


def dag_of(graph: dags.Graph) -> Dag:
    return Dag(graph.bytes, graph.ns, graph.edges)


def check(graph: dags.Graph, found: Strategy) -> None:
    """The answer's numbers are those of its own sequence, by the oracle's formulas and by the referee."""
    assert (found.time, found.peak) == dags.formula(graph, found.sequence)
    runs = dag_step.write_out(dag_of(graph), found.sequence)
    outcome = referee.run(dags.program(graph), dags.as_program_runs(graph, runs))
    assert found.liveness_peak == outcome.peak
    last = found.sequence[-1] - (found.sequence[-2] if len(found.sequence) > 1 else frozenset())
    assert outcome.time - sum(graph.ns) == found.time - sum(graph.ns[v] for v in last)


@pytest.mark.parametrize("prefer", Prefer)
@pytest.mark.parametrize("family", Family)
@settings(max_examples=80, deadline=None)
@given(graph=dags.graphs(5), share=st.floats(0, 1))
def test_a_strategy_is_the_best_of_its_family(family: Family, prefer: Prefer, graph: dags.Graph, share: float) -> None:
    """Promise and optimality at a budget, at the least budget and just below it."""
    strategies = [dags.formula(graph, sequence) for sequence in dags.sequences(graph, FAMILIES[family](graph))]
    least = min(peak for _, peak in strategies)
    choose = min if prefer is Prefer.TIME else max
    dag = dag_of(graph)
    budget = round(least + share * (max(peak for _, peak in strategies) - least))
    for asked, allowed in ((budget, budget), (None, least)):
        found = lower_sets.solve(dag, asked, family=family, prefer=prefer)
        check(graph, found)
        assert found.peak <= allowed
        assert found.time == choose(time for time, peak in strategies if peak <= allowed)
        assert set(found.sequence) <= set(FAMILIES[family](graph))
    with pytest.raises(BudgetTooSmall) as raised:
        lower_sets.solve(dag, least - 1, family=family, prefer=prefer)
    assert (raised.value.budget, raised.value.needed) == (least - 1, least)


@given(dags.graphs(7))
def test_a_family_is_what_it_says(graph: dags.Graph) -> None:
    for family, enumerated in FAMILIES.items():
        sets = lower_set_family.lower_sets(dag_of(graph), family)
        assert sorted(map(sorted, (sets.members(p) for p in range(len(sets))))) == sorted(
            map(sorted, enumerated(graph))
        )


@settings(max_examples=60, deadline=None)
@given(dags.graphs(6), st.sampled_from(Family), st.sampled_from([1, -1]), st.floats(1, 2))
def test_no_bound_is_above_the_optimum(graph: dags.Graph, family: Family, sign: int, share: float) -> None:
    """And what the bounds claim was reached is not below it."""
    dag = dag_of(graph)
    budget = int(lower_sets.solve(dag, None, family=family).peak * share)
    best = sign * lower_sets.solve(dag, budget, family=family, prefer=Prefer.TIME if sign == 1 else Prefer.MEMORY).time
    sets = lower_set_family.lower_sets(dag, family)
    arcs = lower_sets.arcs_within(dag, sets, budget)
    assert arcs is not None
    known = bounds(sets, arcs, sign)
    assert max(known.free.least, known.best.least) <= best + 1e-6
    assert known.reached >= best


@settings(max_examples=60, deadline=None)
@given(
    dags.graphs(5),
    st.lists(st.floats(0, 3), min_size=5, max_size=5),
    st.sampled_from([1, -1]),
    st.integers(0, 10),
)
def test_a_bound_holds_at_any_prices(graph: dags.Graph, prices: list[float], sign: int, room: int) -> None:
    """For every sequence within the budget, and from every set on the way."""
    dag = dag_of(graph)
    budget = lower_sets.solve(dag, None).peak + room
    sets = lower_set_family.lower_sets(dag, Family.EXACT)
    arcs = lower_sets.arcs_within(dag, sets, budget)
    assert arcs is not None
    n = len(dag)
    level = np.minimum(sets.member.sum(axis=0), n - 1)
    level[-1] = n
    bound, _, _ = lower_set_bound._relax(arcs, sign, level, np.array(prices[:n]))
    number = {sets.members(p): p for p in range(len(sets))}
    for sequence in dags.sequences(graph, dags.lower_sets(graph)):
        time, peak = dags.formula(graph, sequence)
        if peak > budget:
            continue
        kept: frozenset[int] = frozenset()
        spent = 0
        past: frozenset[int] = frozenset()
        for lower in sequence:
            assert spent + bound.price[number[past]] * graph.size(kept) + bound.rest[number[past]] <= sign * time + 1e-6
            boundary = frozenset(v for v in lower if graph.after(frozenset([v])) - lower)
            spent += sign * sum(graph.ns[v] for v in lower - past - boundary)
            kept |= boundary
            past = lower


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("seed", range(3))
def test_long_fronts_are_searched_to_the_end(family: Family, seed: int) -> None:
    """Bytes and times so large that hardly two sequences tie."""
    random = Random(seed)
    n = 40 if family is Family.PRUNED else 12
    edges = {(v - 1, v) for v in range(1, n)} if family is Family.PRUNED else set()
    edges |= {(u, v) for v in range(n) for u in range(max(0, v - 4), v) if random.random() < 0.4}
    sizes, times = ([random.randint(1, 10**6) for _ in range(n)] for _ in range(2))
    graph = dags.Graph(tuple(sizes), tuple(times), tuple(sorted(edges)))
    sets = FAMILIES[family](graph)
    least = lower_sets.solve(dag_of(graph), None, family=family).peak
    assert dags.best_time(graph, sets, least - 1, 1) is None
    for budget in (least, *(least * percent // 100 for percent in (105, 110, 130, 160, 200))):
        for prefer, sign in ((Prefer.TIME, 1), (Prefer.MEMORY, -1)):
            found = lower_sets.solve(dag_of(graph), budget, family=family, prefer=prefer)
            check(graph, found)
            assert found.peak <= budget
            assert sign * found.time == dags.best_time(graph, sets, budget, sign)


@settings(max_examples=25, deadline=None)
@given(dags.graphs(7), st.sampled_from(Family))
def test_more_memory_is_never_slower(graph: dags.Graph, family: Family) -> None:
    dag = dag_of(graph)
    least = lower_sets.solve(dag, None, family=family).peak
    budgets = [least + step * (sum(graph.bytes) // 5 + 1) for step in range(6)]
    fast = [lower_sets.solve(dag, budget, family=family).time for budget in budgets]
    slow = [lower_sets.solve(dag, budget, family=family, prefer=Prefer.MEMORY).time for budget in budgets]
    assert fast == sorted(fast, reverse=True)
    assert slow == sorted(slow)


@settings(max_examples=25, deadline=None)
@given(dags.graphs(7))
def test_all_lower_sets_are_no_worse_than_some(graph: dags.Graph) -> None:
    dag = dag_of(graph)
    pruned = lower_sets.solve(dag, None, family=Family.PRUNED)
    exact = lower_sets.solve(dag, pruned.peak, family=Family.EXACT)
    assert exact.time <= pruned.time
    assert lower_sets.solve(dag, None).peak <= pruned.peak


def test_a_strategy_is_not_always_best() -> None:
    """Outside the class: five equal values in a row fit in 4 with two reruns, and in 3 with six. No sequence of lower
    sets stays below 5, neither by the formula nor by what its step holds.
    """
    graph = dags.Graph((1,) * 5, (1,) * 5, ((0, 1), (1, 2), (2, 3), (3, 4)))
    step = dags.program(graph)
    assert [dags.least_time(step, budget) for budget in (2, 3, 4)] == [None, 5 + 6, 5 + 2]
    assert lower_sets.solve(dag_of(graph), None).peak == 5
    every = list(dags.sequences(graph, dags.lower_sets(graph)))
    assert min(dags.formula(graph, sequence)[1] for sequence in every) == 5
    assert min(lower_sets.strategy(dag_of(graph), sequence).liveness_peak for sequence in every) == 5


def golden(found: Strategy) -> str:
    blocks = [
        sorted(now - past) for past, now in zip((frozenset[int](), *found.sequence), found.sequence, strict=False)
    ]
    return f"time {found.time} peak {found.peak} live {found.liveness_peak} blocks {blocks}"


@pytest.mark.parametrize(
    ("budget", "prefer", "words"),
    [
        (None, Prefer.TIME, "time 3 peak 8 live 8 blocks [[0, 1], [2, 3, 4], [5, 6], [7]]"),
        (9, Prefer.TIME, "time 2 peak 9 live 9 blocks [[0], [1], [2, 3, 4], [5, 6], [7]]"),
        (12, Prefer.MEMORY, "time 7 peak 11 live 8 blocks [[0, 1, 2, 3], [4, 5, 6, 7]]"),
        (16, Prefer.TIME, "time 1 peak 10 live 10 blocks [[0], [1, 2], [3, 4], [5, 6], [7]]"),
    ],
)
def test_plans_of_a_residual_chain(budget: int | None, prefer: Prefer, words: str) -> None:
    """Golden: eight equal values, each odd one also read by the next but one."""
    edges = tuple((v, v + 1) for v in range(7)) + ((1, 3), (3, 5), (5, 7))
    assert golden(lower_sets.solve(Dag((1,) * 8, (1,) * 8, edges), budget, prefer=prefer)) == words


def test_a_budget_too_small_says_what_is_needed() -> None:
    with pytest.raises(BudgetTooSmall, match="within 9 bytes; the least peak is 10"):
        lower_sets.solve(Dag((4, 2, 1), (1, 2, 3), ((0, 1), (1, 2))), 9)


def test_too_many_lower_sets_are_refused() -> None:
    """Twenty unconnected values have 2**20 lower sets; the pruned family answers: one of them is cut off first."""
    dag = Dag((1,) * 20, (1,) * 20, ())
    with pytest.raises(InvalidProblem, match="more than 20000 lower sets") as raised:
        lower_sets.solve(dag, None)
    assert raised.value.field == "family"
    assert lower_sets.solve(dag, None, family=Family.PRUNED).peak == 38
