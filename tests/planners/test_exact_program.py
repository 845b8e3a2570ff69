"""exact on Programs: against every plan in stages, and against every plan at all."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lowtide import referee
from lowtide.errors import BudgetTooSmall, InvalidProblem
from lowtide.planners import exact_program, priced
from lowtide.planners.stages import Stages
from lowtide.planners.step import Step
from lowtide.program import Op, Phase, Program, Role, Value
from tests.oracles.programs import least_time, mirrored, programs, stage_targets
from tests.planners.test_planners import chain, failure

STEPS = st.one_of(programs(4, 5), mirrored(4))
SHARES = st.floats(-0.05, 1)


def budget_of(program: Program, share: float) -> int:
    """The budget that lies this share of the way from what is said to be the least to the plain step's peak."""
    refused = failure(exact_program, program, 0)
    least = refused.needed if refused else 0
    return max(0, least + int((referee.run(program, range(len(program.ops))).peak - least) * share))


def uneven(layers: int, seed: int) -> Program:
    """A chain of layers of which none is like another."""
    draw = Random(seed)
    program = chain(layers)
    return Program(
        tuple(replace(value, bytes=draw.randint(1, 10**6)) for value in program.values),
        tuple(replace(op, ns=draw.randint(1, 10**6)) for op in program.ops),
    )


def scaled(program: Program, bytes_: int, ns: int, seed: int) -> Program:
    """The same step in large and uneven numbers: sizes and times are multiplied, and times shaken a little."""
    draw = Random(seed)
    return Program(
        tuple(replace(value, bytes=value.bytes * bytes_) for value in program.values),
        tuple(replace(op, ns=op.ns * ns + draw.randint(0, 9), scratch=op.scratch * bytes_) for op in program.ops),
    )


@settings(max_examples=250, deadline=None)
@given(STEPS, SHARES)
def test_no_plan_in_stages_is_faster(program: Program, share: float) -> None:
    """Promise, optimality in the class, and never better than the true optimum. `priced`, whose plan may come from
    outside the class, may have been faster.
    """
    budget = budget_of(program, share)
    optimum = least_time(program, budget, in_stages=True)
    refused = failure(exact_program, program, budget)
    if refused:
        assert optimum is None
        assert least_time(program, refused.needed - 1, in_stages=True) is None
        assert exact_program.solve(program, refused.needed).peak == refused.needed
        return
    plan = exact_program.solve(program, budget)
    outcome = referee.run(program, plan.runs)
    assert (outcome.peak, outcome.time) == (plan.peak, plan.time)
    assert plan.peak <= budget
    assert plan.gap == 0
    least = least_time(program, budget)
    assert least is not None
    assert least <= plan.time
    assert optimum is None or plan.time <= optimum
    if plan.time != optimum:
        assert plan.runs == priced.solve(program, budget).runs


@settings(max_examples=40, deadline=None)
@given(mirrored(4), SHARES, st.integers(0, 2**32))
def test_large_numbers_change_nothing(program: Program, share: float, seed: int) -> None:
    """Bytes up to gigabytes, times of milliseconds with odd nanoseconds: tolerances cost no exactness."""
    program = scaled(program, 99_999_989, 1_000_003, seed)
    budget = budget_of(program, share)
    optimum = least_time(program, budget, in_stages=True)
    if failure(exact_program, program, budget):
        assert optimum is None
    else:
        plan = exact_program.solve(program, budget)
        assert plan.peak <= budget
        assert plan.gap == 0
        assert optimum is None or plan.time <= optimum


@settings(max_examples=40, deadline=None)
@given(mirrored(4), SHARES, SHARES)
def test_more_memory_is_never_slower(program: Program, one: float, other: float) -> None:
    low, high = sorted((budget_of(program, one), budget_of(program, other)))
    if not failure(exact_program, program, low):
        assert exact_program.solve(program, high).time <= exact_program.solve(program, low).time


def test_plans_of_a_chain() -> None:
    """Golden, and optimal over all plans. In 40 bytes the first values are made three times."""
    program = chain(5)
    plans = {budget: exact_program.solve(program, budget) for budget in (50, 40)}
    assert plans[50].runs == (0, 1, 2, 3, 4, 5, 6, 7, 0, 8, 9)
    assert plans[40].runs == (0, 1, 2, 3, 4, 5, 6, 0, 1, 7, 0, 8, 9)
    for budget, plan in plans.items():
        assert plan.time == least_time(program, budget)
        assert plan.gap == 0


def test_a_plan_outside_the_stages_can_be_faster() -> None:
    """The witness. b0 ends the life of v1, and w1 hands out 7 bytes. In 31 bytes they must change places, or v1 be made
    again.
    """
    sizes = {"v0": 6, "v1": 9, "out": 9, "v3": 0, "g": 1, "d0": 0, "w": 7, "end": 0}
    roles = dict.fromkeys(("out", "w", "end"), Role.OUTPUT) | dict.fromkeys(("g", "d0"), Role.GRADIENT)
    forward, backward = Phase.FORWARD, Phase.BACKWARD
    program = Program(
        tuple(Value(name, size, roles.get(name, Role.ACTIVATION)) for name, size in sizes.items()),
        (
            Op("f0", forward, (), (0, 1), 1),
            Op("f1", forward, (0,), (2, 3), 1, once="moves a counter"),
            Op("enter", backward, (2,), (4,), 0, once="begins backward"),
            Op("b1", backward, (4, 3), (5,), 1),
            Op("w1", backward, (4, 0), (6,), 1),
            Op("b0", backward, (5, 1), (7,), 1),
        ),
    )
    assert (exact_program.solve(program, 31).time, least_time(program, 31)) == (6, 5)
    assert stage_targets(program) == [0, 1, 2, 3, 4, 5]


def test_out_of_time_is_said_and_is_not_infeasible() -> None:
    """With no time to search, the plan of `priced` stands, with the bound that was proven by then."""
    program = uneven(10, 1)
    budget = budget_of(program, 0.3)
    plan, best = (exact_program.solve(program, budget, seconds=seconds) for seconds in (0.0, 60.0))
    assert plan.gap > 0 == best.gap
    assert plan.bound.time <= best.time <= plan.time
    assert (plan.runs, plan.bound) == (priced.solve(program, budget).runs, priced.solve(program, budget).bound)


@settings(max_examples=200, deadline=None)
@given(STEPS, SHARES)
def test_the_integer_program_alone_finds_the_best_of_its_class(program: Program, share: float) -> None:
    """With no plan known beforehand: least time, least peak, and nothing where there is nothing to find."""
    step = Step.of(program)
    assume(step.boundary < len(program.ops))
    stages = Stages(step)
    lowest = stages.lowest(10**6, 60.0)
    assert lowest.ended
    assert lowest.runs is not None
    needed = referee.run(program, lowest.runs).peak
    assert least_time(program, needed, in_stages=True) is not None
    assert least_time(program, needed - 1, in_stages=True) is None
    assert stages.lowest(needed, 60.0).runs is None
    budget = needed + int((referee.run(program, range(len(program.ops))).peak - needed) * share)
    optimum = least_time(program, budget, in_stages=True)
    found = stages.fastest(budget, 10**6, 60.0)
    assert found.ended
    if optimum is None:
        assert found.runs is None
        return
    assert found.runs is not None
    outcome = referee.run(program, found.runs)
    assert (outcome.time, outcome.peak <= budget) == (optimum, True)
    plain = sum(op.ns for op in program.ops)
    assert plain + found.least <= optimum + 1e-6
    assert stages.fastest(budget, optimum - plain, 60.0).runs is None


def test_a_program_that_presolve_spoils_is_solved() -> None:
    """HiGHS answers "Solve error" for this one unless its presolve is off."""
    values = (
        Value("v0", 3, Role.ACTIVATION),
        Value("v1", 1, Role.GRADIENT),
        Value("v2", 0, Role.GRADIENT),
        Value("v3", 0, Role.GRADIENT),
    )
    forward, backward = Phase.FORWARD, Phase.BACKWARD
    ops = (
        Op("f0", forward, (), (0,), 0, 2),
        Op("leave", forward, (), (), once="ends forward"),
        Op("enter", backward, (), (1,), once="begins backward"),
        Op("b0", backward, (1,), (2,)),
        Op("b1", backward, (0,), (3,)),
    )
    program = Program(values, ops)
    lowest = Stages(Step.of(program)).lowest(10**6, 60.0)
    assert lowest.ended
    assert lowest.runs is not None
    needed = referee.run(program, lowest.runs).peak
    assert least_time(program, needed, in_stages=True) is not None
    assert least_time(program, needed - 1, in_stages=True) is None


def test_a_long_step_is_refused() -> None:
    with pytest.raises(InvalidProblem) as caught:
        exact_program.solve(uneven(31, 1), 10**9)
    assert str(caught.value) == (
        "ops: exact takes steps of at most 60 ops, and this one has 62; ask another planner, such as 'best'"
    )
    assert exact_program.solve(chain(30), 10**9).gap == 0


def test_a_step_without_a_choice_is_a_step() -> None:
    """One stage, in which nothing may run before its target."""
    values = (Value("x", 4, Role.OUTPUT), Value("g", 2, Role.GRADIENT))
    program = Program(values, (Op("f", Phase.FORWARD, (), (0,), 3), Op("b", Phase.BACKWARD, (0,), (1,), 5)))
    stages = Stages(Step.of(program))
    assert stages.fastest(6, 10, 1.0).runs == (0, 1)
    assert stages.fastest(5, 10, 1.0).runs is None
    assert exact_program.solve(program, 6).time == 8


def test_a_step_without_backward_is_a_step() -> None:
    program = Program((Value("x", 4, Role.OUTPUT),), (Op("f", Phase.FORWARD, (), (0,), 3),))
    assert exact_program.solve(program, 4).time == 3
    with pytest.raises(BudgetTooSmall) as caught:
        exact_program.solve(program, 3)
    assert caught.value.needed == 4


def test_the_message_names_the_budget_that_works() -> None:
    with pytest.raises(BudgetTooSmall) as caught:
        exact_program.solve(chain(5), 39)
    assert (caught.value.budget, caught.value.needed) == (39, 40)
    assert least_time(chain(5), 39) is None
