"""priced, nested and best: near the optimum, and honest about how near."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide import referee
from lowtide.errors import BudgetTooSmall
from lowtide.planners import best, greedy, keep_all, nested, priced, sqrt
from lowtide.program import Program
from tests.oracles.programs import least_time, mirrored, programs
from tests.planners.test_planners import chain, check_promise, check_remedy

PLANNERS = [priced, nested, best]


def plain_peak(program: Program) -> int:
    """What the plain step holds at most."""
    return referee.run(program, range(len(program.ops))).peak


@pytest.mark.parametrize("planner", PLANNERS)
@settings(max_examples=25, deadline=None)
@given(mirrored() | programs(max_forward=4, max_backward=3), st.integers(0, 20))
def test_a_plan_keeps_its_promises(planner: ModuleType, program: Program, saved: int) -> None:
    """See check_promise; and the bound lies below the optimum of plans with backward in the program's order."""
    budget = plain_peak(program) - saved
    check_promise(planner, program, budget)
    optimum = least_time(program, budget, backward_in_order=True)
    if optimum is not None:
        try:
            assert planner.solve(program, budget).bound.time <= optimum
        except BudgetTooSmall:
            return


@pytest.mark.parametrize("planner", PLANNERS)
@settings(max_examples=15, deadline=None)
@given(mirrored(6), st.integers(0, 30))
def test_the_budget_named_works_and_one_byte_less_does_not(planner: ModuleType, program: Program, saved: int) -> None:
    """See check_remedy."""
    check_remedy(planner, program, plain_peak(program) - saved)


@settings(max_examples=25, deadline=None)
@given(mirrored(6) | programs(), st.integers(0, 30))
def test_best_is_never_worse_than_another(program: Program, saved: int) -> None:
    """Neither slower, nor with a weaker bound, nor refusing what another planner does."""
    budget = plain_peak(program) - saved
    for planner in (keep_all, sqrt, greedy, priced, nested):
        try:
            other = planner.solve(program, budget)
        except BudgetTooSmall:
            continue
        plan = best.solve(program, budget)
        assert plan.time <= other.time
        assert plan.bound.time >= other.bound.time


@pytest.mark.parametrize("budget", range(60, 101, 10))
def test_a_chain_of_equal_layers_is_planned_optimally(budget: int) -> None:
    """Every 10 bytes short of keeping all nine layers cost one rerun of 1 ns, and that is proven."""
    plan = priced.solve(chain(9), budget)
    assert plan.time == 27 + (100 - budget) // 10
    assert plan.gap == 0


def test_a_golden_plan() -> None:
    """Two of nine layers short: the values dropped are made again one by one, each just before it is read."""
    plan = priced.solve(chain(9), 80)
    assert len(plan.runs) == 20
    assert plan.runs[:9] == tuple(range(9))
    assert (plan.peak, plan.time, plan.bound.time) == (80, 29, 29)


def test_the_message_says_what_is_needed_and_where() -> None:
    """What was wanted, what was found, where."""
    with pytest.raises(BudgetTooSmall, match="priced: no plan of this kind fits in 20 bytes: at least 40 are needed"):
        priced.solve(chain(9), 20)


def test_nested_reaches_below_one_rerun_an_op() -> None:
    """A chain of 40 equal layers fits in far fewer bytes when segments have segments, and sqrt says no."""
    program = chain(40)
    plan = nested.solve(program, 90)
    assert plan.peak <= 90
    assert max(plan.runs.count(op) for op in range(40)) > 2
    with pytest.raises(BudgetTooSmall):
        sqrt.solve(program, 90)
