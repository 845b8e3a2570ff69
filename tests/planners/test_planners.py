"""What every simple planner owes; keep_all and sqrt; and what they stand on: replay and lazy reruns."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide import referee
from lowtide.errors import BudgetTooSmall
from lowtide.planners import (
    closed_sets_program,
    keep_all,
    lower_sets_program,
    min_peak_program,
    rotor_program,
    sqrt,
)
from lowtide.planners.replay import replay
from lowtide.planners.rerun import expand
from lowtide.planners.step import Step
from lowtide.program import Op, Phase, Program, Role, Value
from tests.oracles.programs import least_time, programs

BUDGETS = st.integers(0, 80)
PLANNERS = [keep_all, sqrt, closed_sets_program, lower_sets_program, min_peak_program, rotor_program]


def chain(layers: int = 9, size: int = 10) -> Program:
    """Equal layers, each reading the last one's value; backward op i reads values i and i - 1 and the gradient."""
    values = [Value(f"a{i}", size, Role.ACTIVATION) for i in range(layers)]
    ops = [Op(f"f{i}", Phase.FORWARD, (i - 1,) if i else (), (i,), 1) for i in range(layers)]
    for i in reversed(range(layers)):
        values.append(Value(f"d{i}", size, Role.GRADIENT))
        grown = (len(values) - 2,) if i < layers - 1 else ()
        ops.append(Op(f"b{i}", Phase.BACKWARD, (*grown, i, *((i - 1,) if i else ())), (len(values) - 1,), 2))
    return Program(tuple(values), tuple(ops))


def failure(planner: ModuleType, program: Program, budget: int) -> BudgetTooSmall | None:
    """The error with which the planner refuses the budget, if it does."""
    try:
        planner.solve(program, budget)
    except BudgetTooSmall as error:
        return error
    return None


@settings(max_examples=150, deadline=None)
@given(programs(max_forward=8, max_backward=8), st.data())
def test_replay_sees_what_the_referee_sees(program: Program, data: st.DataObject) -> None:
    """The same timeline, peak and time, for any choice of what to keep and when to drop it."""
    step = Step.of(program)
    numbers = st.sets(st.integers(0, len(program.values) - 1))
    drops = data.draw(st.dictionaries(st.integers(step.boundary, len(program.ops)), numbers))
    runs = expand(step, data.draw(numbers), drops)
    seen, outcome = replay(program, runs), referee.run(program, runs)
    assert tuple(seen.timeline.tolist()) == outcome.timeline
    assert (seen.peak, seen.time) == (outcome.peak, outcome.time)
    assert outcome.peak == 0 or seen.at == outcome.at


def test_a_rerun_comes_just_before_its_reader() -> None:
    """The golden sequences of a chain of four layers: what is kept is not run again, and nothing else is there."""
    step = Step.of(chain(4))
    assert expand(step, {0, 1, 2, 3}) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert expand(step, {1}) == [0, 1, 2, 3, 2, 3, 4, 5, 0, 6, 7]
    assert expand(step, set()) == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7]
    assert expand(step, {1}, {4: {2, 3}}) == [0, 1, 2, 3, 2, 3, 4, 2, 5, 0, 6, 7]


def test_an_op_that_backward_alone_needs_waits_for_it() -> None:
    """A mask that only backward reads costs no time when it is not kept, since its first run is in backward."""
    values = [Value(name, 8, role) for name, role in [("x", Role.ACTIVATION), ("y", Role.OUTPUT)]]
    values += [Value("mask", 1, Role.ACTIVATION), Value("dy", 8, Role.GRADIENT), Value("dx", 8, Role.OUTPUT)]
    ops = (
        Op("make", Phase.FORWARD, (), (0,), 5),
        Op("relu", Phase.FORWARD, (0,), (1,), 5),
        Op("positive", Phase.FORWARD, (1,), (2,), 5),
        Op("enter", Phase.BACKWARD, (1,), (3,), 0, once="begins backward"),
        Op("relu_backward", Phase.BACKWARD, (2, 3), (4,), 5),
    )
    assert expand(Step.of(Program(tuple(values), ops)), set()) == [0, 1, 3, 2, 4]


def check_promise(planner: ModuleType, program: Program, budget: int) -> None:
    """Valid, within budget, as good as claimed, bound by what is true, and never better than the true optimum."""
    optimum = least_time(program, budget)
    try:
        plan = planner.solve(program, budget)
    except BudgetTooSmall:
        return
    outcome = referee.run(program, plan.runs)
    assert outcome.peak == plan.peak <= budget
    assert optimum is not None
    assert optimum <= plan.time == outcome.time
    assert plan.bound.time <= plan.time
    assert plan.program == program.fingerprint


def check_remedy(planner: ModuleType, program: Program, budget: int) -> None:
    """The remedy in the error is the least budget of the planner asked."""
    error = failure(planner, program, budget)
    if error is None:
        return
    assert error.budget == budget < error.needed
    assert str(error.needed) in str(error)
    assert planner.solve(program, error.needed).peak <= error.needed
    with pytest.raises(BudgetTooSmall):
        planner.solve(program, error.needed - 1)


@pytest.mark.parametrize("planner", PLANNERS)
@settings(max_examples=100, deadline=None)
@given(programs(max_forward=4, max_backward=3), BUDGETS)
def test_a_plan_keeps_its_promises(planner: ModuleType, program: Program, budget: int) -> None:
    """See check_promise."""
    check_promise(planner, program, budget)


@pytest.mark.parametrize("planner", PLANNERS)
@settings(max_examples=100, deadline=None)
@given(programs(max_forward=8, max_backward=8), BUDGETS)
def test_the_budget_named_works_and_one_byte_less_does_not(planner: ModuleType, program: Program, budget: int) -> None:
    """See check_remedy."""
    check_remedy(planner, program, budget)


@pytest.mark.parametrize("planner", PLANNERS)
@settings(max_examples=100, deadline=None)
@given(programs(max_forward=8, max_backward=8), BUDGETS, BUDGETS)
def test_more_memory_is_never_slower(planner: ModuleType, program: Program, one: int, other: int) -> None:
    """Monotone in the budget."""
    low, high = sorted((one, other))
    try:
        slow = planner.solve(program, low)
    except BudgetTooSmall:
        return
    assert planner.solve(program, high).time <= slow.time


def test_keep_all_is_optimal_where_it_fits_and_not_the_only_one_that_fits() -> None:
    """It is the fastest of all at its own peak; below, a plan with reruns lives on."""
    program = chain(5)
    plan = keep_all.solve(program, 60)
    assert (plan.peak, plan.time, plan.gap) == (60, 15, 0)
    assert least_time(program, 50) == 16


def test_sqrt_keeps_the_boundaries_of_segments() -> None:
    """Nine equal layers in three segments: the last is kept, the others are run again but for their last layers."""
    plan = sqrt.solve(chain(9), 60)
    assert plan.runs == (*range(9), 9, 10, 11, 3, 4, 12, 13, 14, 0, 1, 15, 16, 17)
    assert (plan.peak, plan.time) == (60, 31)


def test_sqrt_is_not_the_best_of_its_budget() -> None:
    """Where its claim stops: running an op again more than once reaches lower."""
    assert least_time(chain(5), 40) == 18
    with pytest.raises(BudgetTooSmall):
        sqrt.solve(chain(5), 40)


def test_the_message_says_what_is_needed_and_where() -> None:
    """What was wanted, what was found, where."""
    with pytest.raises(BudgetTooSmall) as caught:
        keep_all.solve(chain(5), 59)
    assert str(caught.value) == (
        "keep_all: no plan of this kind fits in 59 bytes: at least 60 are needed.\n"
        "The narrowest place is b4: 60 bytes at once."
    )
