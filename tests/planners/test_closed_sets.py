"""closed_sets against every set of stored values."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings

from lowtide.errors import BudgetTooSmall, InvalidProblem
from lowtide.planners import closed_sets, lower_sets
from lowtide.planners.closed_sets import Storage
from lowtide.planners.dag import Dag
from lowtide.planners.division_tree import Complicate, Linear, division_tree
from tests.oracles import dags


def dag_of(graph: dags.Graph) -> Dag:
    return Dag(graph.bytes, graph.ns, graph.edges)


def random_graph(random: Random) -> dags.Graph:
    """A graph of 2 to 8 values with one source and one target, thin ones as likely as dense ones."""
    n = random.randint(2, 8)
    density = random.choice((0.05, 0.15, 0.3, 0.6))
    edges = {(u, v) for v in range(n) for u in range(v) if random.random() < density}
    for v in range(1, n):
        if not any(b == v for _, b in edges):
            edges.add((random.randrange(v), v))
    for v in range(n - 1):
        if not any(a == v for a, _ in edges):
            edges.add((v, random.randrange(v + 1, n)))
    most = random.choice((1, 3, 1000))
    return dags.Graph(tuple(random.randint(0, most) for _ in range(n)), (1,) * n, tuple(sorted(edges)))


@settings(max_examples=200, deadline=None)
@given(dags.graphs(8, ends=True))
def test_a_storage_is_the_least(graph: dags.Graph) -> None:
    """Promise, optimality, and the budget that is just too small."""
    best = dags.least_cost(graph)
    found = closed_sets.solve(dag_of(graph), None)
    assert found.cost == best == dags.stored_cost(graph, frozenset(found.stored))
    assert closed_sets.solve(dag_of(graph), best) == found
    with pytest.raises(BudgetTooSmall) as raised:
        closed_sets.solve(dag_of(graph), best - 1)
    assert (raised.value.budget, raised.value.needed) == (best - 1, best)


def test_a_storage_is_the_least_on_many_graphs() -> None:
    """Every kind of region occurs, complicate ones with others inside among them."""
    random = Random(1808)
    kinds = set()
    for _ in range(4000):
        graph = random_graph(random)
        dag = dag_of(graph)
        found = closed_sets.solve(dag, None)
        assert found.cost == dags.least_cost(graph) == dags.stored_cost(graph, frozenset(found.stored)), graph
        for region in division_tree(dag).regions:
            if isinstance(region, Linear):
                kinds.add(("linear", len(region.cuts) > 1, any(len(gap) > 1 for gap in region.gaps)))
            else:
                kinds.add(("complicate", len(region.inside) > 0))
    assert {("linear", True, True), ("complicate", True), ("complicate", False)} <= kinds


@settings(max_examples=100, deadline=None)
@given(dags.graphs(9, ends=True))
def test_a_larger_bound_never_stores_more(graph: dags.Graph) -> None:
    """Monotone: what is stored falls as the bound on a piece grows."""
    dag = dag_of(graph)
    tree = division_tree(dag)
    stored = [closed_sets._bytes_stored(dag, tree, bound) for bound in range(0, 91, 5)]
    assert stored == sorted(stored, reverse=True)


def test_worked_by_hand() -> None:
    """Values 1 and 2 between source 0 and target 3, all joined: both stored, or both one piece; either is 7 bytes."""
    found = closed_sets.solve(Dag((5, 6, 1, 5), (1,) * 4, ((0, 1), (0, 2), (1, 2), (1, 3), (2, 3))), None)
    assert found.cost == 7
    assert found.stored in ((), (1, 2))


def test_a_stored_set_is_not_a_step() -> None:
    """Where the claim stops: in a graph where everything reads everything there is no piece but the whole, so storing
    nothing and storing all cost the same, though a sequence of lower sets keeps its peak below that of one block.
    """
    n = 6
    graph = dags.Graph((1,) * n, (1,) * n, tuple((u, v) for v in range(n) for u in range(v)))
    assert closed_sets.solve(dag_of(graph), None).cost == dags.least_cost(graph) == 4
    assert [
        stored for stored in dags.subsets(frozenset(range(1, 5))) if dags.stored_cost(graph, stored) is not None
    ] == [
        frozenset(),
        frozenset({1, 2, 3, 4}),
    ]
    assert lower_sets.solve(dag_of(graph), None).peak < 2 * n


CHAIN = tuple((v, v + 1) for v in range(9))
SKIPS = CHAIN + ((1, 3), (3, 5), (5, 7))
WEAVE = ((0, 1), (0, 2), (1, 3), (1, 4), (2, 4), (2, 3), (3, 5), (4, 6), (5, 7), (6, 8), (7, 9), (8, 9), (5, 6))


@pytest.mark.parametrize(
    ("edges", "storage"),
    [
        (CHAIN, Storage(4, (3, 6))),
        (SKIPS, Storage(5, (1, 3, 5, 7))),
        (WEAVE, Storage(7, (1, 2, 3, 4, 5, 6))),
    ],
)
def test_storages_of_ten_values(edges: tuple[tuple[int, int], ...], storage: Storage) -> None:
    """Golden: ten values of one byte in a row, with skips, and woven."""
    assert closed_sets.solve(Dag((1,) * 10, (1,) * 10, edges), None) == storage


def test_the_division_of_a_weave() -> None:
    """Golden: what lies between 0 and 9 of the weave has no cut; two chains inside it do."""
    tree = division_tree(Dag((1,) * 10, (1,) * 10, WEAVE))
    whole, *inside = tree.regions
    assert isinstance(whole, Complicate)
    assert whole.stored == (1, 2, 3, 4, 5, 6)
    assert [region.cuts for region in inside if isinstance(region, Linear)] == [(7,), (8,)]


def test_a_deep_nest_needs_no_recursion() -> None:
    """Ladders within ladders, 300 deep: a square with a diagonal, one side of which is the next one."""
    edges: list[tuple[int, int]] = []
    depth = 300
    first, last = 0, 2 * depth + 3
    for level in range(depth):
        low, high = level + 1, last - level - 1
        edges += [(first + level, low), (first + level, high), (low, last - level), (high, last - level)]
    edges.append((depth, last - depth))
    edges += [(depth, depth + 1), (depth + 1, last - depth)]
    n = last + 1
    used = sorted({v for edge in edges for v in edge})
    number = {v: i for i, v in enumerate(used)}
    dag = Dag((1,) * len(used), (1,) * len(used), tuple(sorted((number[u], number[v]) for u, v in edges)))
    assert closed_sets.solve(dag, None).cost <= n


@pytest.mark.parametrize(
    ("edges", "words"),
    [
        (((0, 2), (1, 2)), "found 2 sources: 0, 1"),
        (((0, 1), (0, 2)), "found 2 targets: 1, 2"),
        ((), "found 3 sources: 0, 1, 2"),
    ],
)
def test_several_ends_are_refused(edges: tuple[tuple[int, int], ...], words: str) -> None:
    with pytest.raises(InvalidProblem, match=words) as raised:
        closed_sets.solve(Dag((1,) * 3, (1,) * 3, edges), None)
    assert raised.value.field == "edges"


@pytest.mark.parametrize(
    ("n", "edges"), [(1, ()), (2, ((0, 1),)), (3, ((0, 1), (1, 2))), (3, ((0, 1), (0, 2), (1, 2)))]
)
def test_small_dags_are_answered(n: int, edges: tuple[tuple[int, int], ...]) -> None:
    assert closed_sets.solve(Dag((4,) * n, (1,) * n, edges), None).cost == (4 if n == 3 else 0)


def test_a_budget_too_small_says_what_is_needed() -> None:
    with pytest.raises(BudgetTooSmall, match="costs at most 3 bytes; the least cost is 4"):
        closed_sets.solve(Dag((1,) * 10, (1,) * 10, CHAIN), 3)
