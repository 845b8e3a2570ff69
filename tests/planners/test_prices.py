"""The proven bound: never above the optimum, and what it is worth."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide import referee
from lowtide.planners.prices import Prices, Relaxed
from lowtide.planners.step import Step
from lowtide.program import Op, Phase, Program, Role, Value
from tests.oracles.programs import least_time, mirrored, programs
from tests.planners.test_planners import chain


def check(program: Program, saved: int, instants: Collection[int]) -> None:
    """The bound is not above the optimum, and refuses no budget that some plan meets."""
    budget = referee.run(program, range(len(program.ops))).peak - saved
    moments = len(program.ops) - program.boundary
    relaxed = Relaxed.of(Step.of(program), [t for t in instants if t < moments])
    prices = relaxed.solve(budget)
    optimum = least_time(program, budget, backward_in_order=True)
    if optimum is not None:
        assert prices is not None
        assert relaxed.proof(prices).at(budget).time <= optimum
    if prices is not None:
        for other in (budget - 2, budget + 3):
            elsewhere = least_time(program, other, backward_in_order=True)
            assert elsewhere is None or relaxed.proof(prices).at(other).time <= elsewhere


INSTANTS = st.sampled_from([(), range(1, 12)]) | st.sets(st.integers(1, 6))


@settings(max_examples=150, deadline=None)
@given(programs(max_forward=4, max_backward=4), st.integers(0, 20), INSTANTS)
def test_the_bound_is_never_above_the_optimum(program: Program, saved: int, instants: Collection[int]) -> None:
    """Of plans with the program's order of backward ops; any order of forward ops, reruns repeated or not."""
    check(program, saved, instants)


@settings(max_examples=100, deadline=None)
@given(mirrored(), st.integers(0, 20), INSTANTS)
def test_the_bound_is_never_above_the_optimum_of_mirrored_steps(
    program: Program, saved: int, instants: Collection[int]
) -> None:
    """The same on steps in which backward mirrors forward, as in captured ones."""
    check(program, saved, instants)


def late_peak() -> Program:
    """Value 0 is only good for making value 1 again, and may be gone when the largest gradient is there."""
    sizes = [(1, Role.ACTIVATION), (10, Role.ACTIVATION), (10, Role.GRADIENT), (0, Role.GRADIENT), (21, Role.GRADIENT)]
    ops = (
        Op("dear", Phase.FORWARD, (), (0,), 100),
        Op("cheap", Phase.FORWARD, (0,), (1,), 1),
        Op("leave", Phase.FORWARD, (1,), (), once="ends forward"),
        Op("enter", Phase.BACKWARD, (), (2,), 0, 10),
        Op("use", Phase.BACKWARD, (1, 2), (3,)),
        Op("grow", Phase.BACKWARD, (3,), (4,)),
    )
    return Program(tuple(Value(f"v{i}", size, role) for i, (size, role) in enumerate(sizes)), ops)


@pytest.mark.parametrize("instants", [(), (1,), (2,), (1, 2)])
def test_what_only_reruns_need_may_go_after_them(instants: tuple[int, ...]) -> None:
    """Worked by hand: 21 bytes hold 0 across the boundary, not 1; making 1 again costs 1, and 0 is gone by the end."""
    relaxed = Relaxed.of(Step.of(late_peak()), instants)
    prices = relaxed.solve(21)
    assert prices is not None
    assert relaxed.proof(prices).extra(21) == 1


def test_instants_see_what_has_to_wait() -> None:
    """Worked by hand: "narrow" leaves no byte for what "late" reads, so that all of it is made again after it.

    Without the instant, the dear value is there at the first moment, and thought to need no room after it.
    """
    sizes = [(1, Role.ACTIVATION), (10, Role.ACTIVATION), (0, Role.GRADIENT), (0, Role.GRADIENT), (0, Role.GRADIENT)]
    ops = (
        Op("dear", Phase.FORWARD, (), (0,), 100),
        Op("cheap", Phase.FORWARD, (0,), (1,), 1),
        Op("leave", Phase.FORWARD, (1,), (), once="ends forward"),
        Op("enter", Phase.BACKWARD, (), (2,)),
        Op("narrow", Phase.BACKWARD, (2,), (3,), 0, 11),
        Op("late", Phase.BACKWARD, (1, 3), (4,)),
    )
    step = Step.of(Program(tuple(Value(f"v{i}", size, role) for i, (size, role) in enumerate(sizes)), ops))
    proofs = []
    for instants in ((), (1,)):
        relaxed = Relaxed.of(step, instants)
        prices = relaxed.solve(11)
        assert prices is not None
        proofs.append(relaxed.proof(prices).extra(11))
    assert proofs == [1, 101]


@settings(max_examples=100, deadline=None)
@given(mirrored(), st.integers(0, 20), INSTANTS, st.data())
def test_any_prices_prove_something_true(
    program: Program, saved: int, instants: Collection[int], data: st.DataObject
) -> None:
    """The proof does not rest on the prices being the best ones."""
    budget = referee.run(program, range(len(program.ops))).peak - saved
    optimum = least_time(program, budget, backward_in_order=True)
    moments = len(program.ops) - program.boundary
    relaxed = Relaxed.of(Step.of(program), [t for t in instants if t < moments])
    price = st.floats(-1, 3)
    rent = data.draw(st.lists(price, min_size=len(relaxed.fixed), max_size=len(relaxed.fixed)))
    worth = data.draw(st.lists(price, min_size=len(relaxed.least), max_size=len(relaxed.least)))
    prices = Prices(0.0, np.zeros(len(relaxed.cost)), np.array(rent), np.array(worth))
    if optimum is not None:
        assert relaxed.proof(prices).at(budget).time <= optimum


@settings(max_examples=100, deadline=None)
@given(mirrored(), st.integers(0, 20))
def test_the_prices_prove_what_the_program_costs(program: Program, saved: int) -> None:
    """Nothing of the linear program's least cost is lost when the prices are rounded."""
    budget = referee.run(program, range(len(program.ops))).peak - saved
    relaxed = Relaxed.of(Step.of(program))
    prices = relaxed.solve(budget)
    if prices is not None:
        assert relaxed.proof(prices).extra(budget) >= prices.extra - 1e-3


def test_equal_layers_pay_for_the_bytes_that_are_wanting() -> None:
    """A chain of nine layers of 10 bytes and 1 ns, 25 bytes short at the boundary: two and a half reruns, so three."""
    step = Step.of(chain(9))
    relaxed = Relaxed.of(step)
    prices = relaxed.solve(75)
    assert prices is not None
    assert prices.extra == pytest.approx(2.5)
    assert relaxed.proof(prices).extra(75) == 3
    assert relaxed.proof(replace(prices, rent=prices.rent * 0)).extra(75) == 0
