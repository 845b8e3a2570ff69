"""The proven bound: never above the optimum, and what it is worth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracles.programs import least_time, mirrored, programs
from tests.planners.test_simple import chain

from lowtide import referee
from lowtide.planners.prices import Prices, Relaxed
from lowtide.planners.step import Step
from lowtide.program import Program


def proven(program: Program, budget: int) -> int | None:
    """The least time of a step by the relaxation's own prices; None where it says that nothing fits."""
    relaxed = Relaxed.of(Step.of(program))
    prices = relaxed.solve(budget)
    return None if prices is None else relaxed.bound(prices, budget).time


def check(program: Program, saved: int) -> None:
    budget = referee.run(program, range(len(program.ops))).peak - saved
    least = proven(program, budget)
    optimum = least_time(program, budget, backward_in_order=True)
    assert optimum is None or (least is not None and least <= optimum)


@settings(max_examples=300, deadline=None)
@given(programs(max_forward=4, max_backward=4), st.integers(0, 20))
def test_the_bound_is_never_above_the_optimum(program: Program, saved: int) -> None:
    """Of plans with the program's order of backward ops; any order of forward ops, reruns repeated or not."""
    check(program, saved)


@settings(max_examples=300, deadline=None)
@given(mirrored(), st.integers(0, 20))
def test_the_bound_is_never_above_the_optimum_of_mirrored_steps(program: Program, saved: int) -> None:
    """The same on steps in which backward mirrors forward, as in captured ones."""
    check(program, saved)


@settings(max_examples=200, deadline=None)
@given(mirrored(), st.integers(0, 20), st.data())
def test_any_prices_prove_something_true(program: Program, saved: int, data: st.DataObject) -> None:
    """The proof does not rest on the prices being the best ones."""
    budget = referee.run(program, range(len(program.ops))).peak - saved
    optimum = least_time(program, budget, backward_in_order=True)
    relaxed = Relaxed.of(Step.of(program))
    price = st.floats(-1, 3)
    rent = data.draw(st.lists(price, min_size=len(relaxed.fixed), max_size=len(relaxed.fixed)))
    worth = data.draw(st.lists(price, min_size=len(relaxed.least), max_size=len(relaxed.least)))
    prices = Prices(0.0, np.zeros(len(relaxed.cost)), np.array(rent), np.array(worth))
    if optimum is not None:
        assert relaxed.bound(prices, budget).time <= optimum


@settings(max_examples=100, deadline=None)
@given(mirrored(), st.integers(0, 20))
def test_the_prices_prove_what_the_program_costs(program: Program, saved: int) -> None:
    """Nothing of the linear program's least cost is lost when the prices are rounded."""
    budget = referee.run(program, range(len(program.ops))).peak - saved
    relaxed = Relaxed.of(Step.of(program))
    prices = relaxed.solve(budget)
    if prices is not None:
        assert relaxed.proven(prices, budget) >= prices.extra - 1e-3


def test_equal_layers_pay_for_the_bytes_that_are_wanting() -> None:
    """A chain of nine layers of 10 bytes and 1 ns, 25 bytes short at the boundary: two and a half reruns, so three."""
    step = Step.of(chain(9))
    relaxed = Relaxed.of(step)
    prices = relaxed.solve(75)
    assert prices is not None
    assert prices.extra == pytest.approx(2.5)
    assert relaxed.proven(prices, 75) == 3
    assert relaxed.proven(replace(prices, rent=prices.rent * 0), 75) == 0
