"""The true optimum on a chain, against plain enumeration of all states of memory."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.errors import BudgetTooSmall, InvalidProblem
from lowtide.planners import exact_chain, rotor
from lowtide.planners.chain import Chain
from tests.oracles import chains as enumerated
from tests.planners.drawn import attempt, chains, equal_chain, uneven_chain

FIVE = equal_chain(5)


@given(chains(most_stages=3), st.integers(0, 30))
@settings(max_examples=150, deadline=None)
def test_no_plan_of_any_kind_is_faster(chain: Chain, budget: int) -> None:
    """Promise and optimality: it can be run, fits, takes the time promised, and nothing takes less."""
    optimum = enumerated.least_time(chain, budget)
    if optimum is None:
        with pytest.raises(BudgetTooSmall) as caught:
            exact_chain.solve(chain, budget)
        needed = caught.value.needed
        assert enumerated.least_time(chain, needed) is not None
        assert enumerated.least_time(chain, needed - 1) is None
        return
    plan = exact_chain.solve(chain, budget)
    assert enumerated.replay(chain, plan.runs) == (plan.time, plan.peak)
    assert plan.time == optimum
    assert plan.peak <= budget


@given(chains(most_stages=3), st.data())
@settings(max_examples=100, deadline=None)
def test_records_smaller_than_their_values(chain: Chain, data: st.DataObject) -> None:
    """Against the meaning of a record, and still searched right: then a record may be worth dropping."""
    saved = data.draw(st.lists(st.integers(0, 6), min_size=chain.stages, max_size=chain.stages))
    odd = Chain.from_json(chain.to_json() | {"saved_bytes": saved})
    budget = data.draw(st.integers(0, 30))
    answer = attempt(exact_chain.solve, odd, budget)
    if isinstance(answer, BudgetTooSmall):
        assert enumerated.least_time(odd, budget) is None
        assert enumerated.least_time(odd, answer.needed) is not None
        assert enumerated.least_time(odd, answer.needed - 1) is None
    else:
        assert enumerated.replay(odd, answer.runs) == (answer.time, answer.peak)
        assert answer.time == enumerated.least_time(odd, budget)


@pytest.mark.parametrize(("stages", "count"), [(2, 120), (3, 50), (4, 4)])
@pytest.mark.parametrize("records", ["as they are", "of any size"])
def test_the_tightest_budgets(stages: int, count: int, records: str) -> None:
    """Sizes of extremes, from the least budget that works on; the peak promised is the peak of the runs."""
    draw = random.Random(stages)
    for _ in range(count):
        chain = uneven_chain(draw, stages)
        if records == "of any size":
            chain = replace(chain, saved_bytes=tuple(draw.choice([0, 1, 2, 9]) for _ in range(stages)))
        refused = attempt(exact_chain.solve, chain, -1)
        assert isinstance(refused, BudgetTooSmall)
        assert enumerated.least_time(chain, refused.needed - 1) is None
        for budget in (refused.needed, draw.randint(refused.needed, exact_chain.solve(chain, None).peak)):
            plan = exact_chain.solve(chain, budget)
            assert enumerated.replay(chain, plan.runs) == (plan.time, plan.peak)
            assert plan.time == enumerated.least_time(chain, budget)
            assert plan.peak <= budget


@given(chains(most_stages=6), st.integers(0, 50), st.integers(1, 5))
@settings(max_examples=150, deadline=None)
def test_more_memory_is_never_slower_and_persistence_never_faster(chain: Chain, budget: int, more: int) -> None:
    best, persistent = (attempt(planner.solve, chain, budget) for planner in (exact_chain, rotor))
    if isinstance(best, BudgetTooSmall):
        assert isinstance(persistent, BudgetTooSmall)
        assert persistent.needed >= best.needed > budget
        return
    assert exact_chain.solve(chain, budget + more).time <= best.time
    if isinstance(persistent, BudgetTooSmall):
        assert persistent.needed > budget
    else:
        assert persistent.time >= best.time


@pytest.mark.parametrize(
    ("budget", "time"), [(6, 25), (7, 20), (8, 18), (9, 17), (10, 17), (11, 16), (12, 16), (13, 15), (None, 15)]
)
def test_times_of_five_equal_stages(budget: int | None, time: int) -> None:
    assert exact_chain.solve(FIVE, budget).time == time


def test_a_budget_that_only_dropping_meets() -> None:
    """The witness for `needed`: the least budget of all plans can lie below that of the persistent ones.

    F_all 2 holds 12 bytes (a^1 5, ā^2 2, scratch 5) and no gradient beside it, so it runs before the loss. At B 3,
    5 + 2 + 2 + 1 held, δ^2 1 and scratch 2 would be 13: a^1 must go, though B 2 will want it, and comes back in ā^1.
    """
    chain = Chain((1, 1, 1), (1, 1, 1), (0, 5, 1, 2), (5, 2, 2), (2, 1, 1, 1), (2, 5, 2), (0, 0, 2))
    best, persistent = (attempt(planner.solve, chain, 0) for planner in (exact_chain, rotor))
    assert isinstance(best, BudgetTooSmall)
    assert isinstance(persistent, BudgetTooSmall)
    assert (best.needed, persistent.needed) == (12, 13)
    assert ", ".join(exact_chain.solve(chain, 12).runs) == (
        "F_ck 1, F_all 2, F_all 3, loss, drop value 1, B 3, F_all 1, B 2, B 1"
    )


def test_a_value_is_let_go_before_the_record_that_contains_it_is_made() -> None:
    """At 21 bytes a^1 gives way to ā^1, which holds it too; beside each other they would make the peak 23."""
    chain = Chain(
        (2, 5, 1, 1), (4, 4, 1, 3), (2, 2, 1, 2, 1), (9, 1, 1, 1), (0, 2, 0, 1, 2), (9, 0, 2, 0), (1, 0, 1, 2), 9
    )
    for budget in range(20, 30):
        plan = exact_chain.solve(chain, budget)
        assert enumerated.replay(chain, plan.runs) == (plan.time, plan.peak)
        assert plan.peak <= budget


def test_golden_plan() -> None:
    """a^3 makes a^4, is dropped for the loss, and is made again inside the record that B 3 wants anyway."""
    assert ", ".join(exact_chain.solve(FIVE, 8).runs) == (
        "F_ck 1, F_none 2, F_ck 3, F_all 4, F_all 5, drop value 3, loss, B 5, "
        "F_all 3, B 4, B 3, F_all 1, F_all 2, B 2, B 1"
    )


def test_a_budget_too_small_names_the_place_and_the_remedy() -> None:
    with pytest.raises(BudgetTooSmall) as caught:
        exact_chain.solve(FIVE, 5)
    assert str(caught.value) == (
        "no plan fits in 5 bytes: this chain of 5 stages needs at least 6. "
        "The narrowest place is B 5. Raise the budget to 6, or make that stage smaller."
    )
    assert (caught.value.budget, caught.value.needed) == (5, 6)
    assert exact_chain.solve(FIVE, 6).peak == 6


def test_a_chain_too_long_to_search_is_refused() -> None:
    with pytest.raises(InvalidProblem, match="13 stages, but the exact search takes at most 12") as caught:
        exact_chain.solve(equal_chain(13), None)
    assert caught.value.field == "forward_ns"
