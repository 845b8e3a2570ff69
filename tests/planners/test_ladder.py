"""The ladder of budgets: never slower for more bytes, never higher for fewer; and the working set at its foot."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from lowtide import referee
from lowtide.errors import BudgetTooSmall
from lowtide.planners import best
from lowtide.planners.choice import Choice, Tried
from lowtide.planners.front import Front
from lowtide.planners.ladder import Ladder
from lowtide.planners.step import Step
from lowtide.planners.working_set import WorkingSet
from lowtide.program import Program
from tests.oracles.programs import least_time, mirrored, programs
from tests.planners.test_planners import chain


def check_monotone(program: Program, points: int) -> None:
    """Over evenly spaced budgets, time falls and peak rises, and what fits once fits with more."""
    peak = referee.run(program, range(len(program.ops))).peak
    time, held = None, 0
    for point in range(points + 1):
        budget = peak * point // points
        try:
            plan = best.solve(program, budget)
        except BudgetTooSmall:
            assert time is None
            continue
        outcome = referee.run(program, plan.runs)
        assert outcome.peak <= budget
        assert time is None or outcome.time <= time
        assert outcome.peak >= held
        time, held = outcome.time, outcome.peak


@settings(max_examples=40, deadline=None)
@given(mirrored(6) | programs())
def test_more_bytes_are_never_slower_and_fewer_never_hold_more(program: Program) -> None:
    """At every budget there is: those steps hold a few dozen bytes."""
    check_monotone(program, referee.run(program, range(len(program.ops))).peak or 1)


def test_a_long_chain_is_monotone() -> None:
    """Where searches do differ from budget to budget."""
    check_monotone(chain(30, 1000), 40)


@settings(max_examples=150, deadline=None)
@given(mirrored(4) | programs(max_forward=4, max_backward=3))
def test_no_plan_holds_less_than_the_working_set(program: Program) -> None:
    """A byte less, and an exhaustive search finds none."""
    least = WorkingSet.of(Step.of(program))
    if least.bytes:
        assert least_time(program, least.bytes - 1, backward_in_order=True) is None
    if program.ops:
        assert 0 <= least.at < len(program.ops)


def test_the_working_set_is_reached_where_a_value_in_the_way_can_be_made_again() -> None:
    """Eight layers of 10 bytes: three values at once are enough, and less is not."""
    program = chain(8)
    assert WorkingSet.of(Step.of(program)).bytes == best.solve(program, 40).peak == 40
    with pytest.raises(BudgetTooSmall, match="at least 40 are needed"):
        best.solve(program, 39)


def test_a_curve_runs_from_the_least_budget_to_the_plain_step() -> None:
    """Each plan faster and higher than the one before, and no slower than it need be at its own peak."""
    program = chain(30)
    plans = best.curve(program, points=12)
    assert len(plans) >= 8
    assert [plan.time for plan in plans] == sorted((plan.time for plan in plans), reverse=True)
    assert [plan.peak for plan in plans] == sorted(plan.peak for plan in plans)
    assert plans[-1].reruns == 0
    with pytest.raises(BudgetTooSmall):
        best.solve(program, plans[0].peak - 1)
    for plan in plans:
        outcome = referee.run(program, plan.runs)
        assert (outcome.time, outcome.peak) == (plan.time, plan.peak)
        assert plan.bound.time <= best.solve(program, plan.peak).time <= plan.time


def test_a_front_keeps_what_nothing_beats() -> None:
    """Lower and slower beside higher and faster; what both beat is gone."""
    step = Step.of(chain(6))
    tries = [Tried.of(step, Choice.keeping(step, kept)) for kept in ([], [2], [2, 3], range(6))]
    front = Front(tries)
    ranks = [(tried.seen.peak, tried.seen.time) for tried in front]
    assert ranks == sorted(ranks)
    assert [time for _, time in ranks] == sorted((time for _, time in ranks), reverse=True)
    for tried in tries:
        fastest = front.fastest(tried.seen.peak)
        assert fastest is not None
        assert fastest.seen.time <= tried.seen.time
    assert front.fastest(ranks[0][0] - 1) is None


def test_the_lowest_is_what_a_ladder_gives_just_above_it() -> None:
    """At its own peak it is served; one byte below nothing is."""
    ladder = Ladder(Step.of(chain(20)))
    lowest = ladder.lowest
    assert ladder.fastest(lowest.seen.peak) is not None
    assert ladder.fastest(lowest.seen.peak - 1) is None
