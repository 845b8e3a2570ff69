"""rotor: the fastest persistent plan for a chain, against enumeration, closed forms and hand-worked values."""

from __future__ import annotations

import random
from dataclasses import replace
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.errors import BudgetTooSmall, InvalidPlan, InvalidProblem
from lowtide.planners import exact_chain, rotor
from lowtide.planners.chain import Chain
from lowtide.planners.chain_replay import replay
from tests.oracles import chains as enumerated
from tests.planners.drawn import attempt, chains, equal_chain, uneven_chain

FIVE = equal_chain(5)


def long_chain(stages: int, seed: int = 3, most: int = 10**6) -> Chain:
    """A chain too long and too uneven for anything to be enumerated."""
    draw = random.Random(seed)

    def numbers(count: int, top: int = most) -> tuple[int, ...]:
        return tuple(draw.randint(1, top) for _ in range(count))

    values = numbers(stages + 1)
    saved = tuple(value + beside for value, beside in zip(values[1:], numbers(stages)))
    scratch = max(most // 10, 1)
    return Chain(
        numbers(stages), numbers(stages), values, saved, numbers(stages + 1), numbers(stages, scratch), numbers(stages)
    )


@given(chains(most_stages=3), st.integers(0, 30), st.integers(1, 6))
@settings(max_examples=150, deadline=None)
def test_a_plan_keeps_its_promises(chain: Chain, budget: int, slots: int) -> None:
    """Promise and optimality: it can be run, fits, takes the time promised, and no persistent plan takes less."""
    optimum = enumerated.least_persistent_time(chain, budget)
    if optimum is None:
        with pytest.raises(BudgetTooSmall) as caught:
            rotor.solve(chain, budget)
        needed = caught.value.needed
        assert enumerated.least_persistent_time(chain, needed) is not None
        assert enumerated.least_persistent_time(chain, needed - 1) is None
        return
    plan = rotor.solve(chain, budget)
    assert plan.optimal
    assert enumerated.replay(chain, plan.runs) == (plan.time, plan.peak)
    assert plan.time == optimum
    assert plan.peak <= budget
    coarse = rotor.solve(chain, budget, slots=slots)
    assert enumerated.replay(chain, coarse.runs) == (coarse.time, coarse.peak)
    assert coarse.peak <= budget
    assert coarse.time == optimum if coarse.optimal else coarse.time >= optimum


@pytest.mark.parametrize(("stages", "count"), [(2, 120), (3, 60), (4, 5)])
def test_the_tightest_budgets(stages: int, count: int) -> None:
    """Sizes of extremes (a large gradient over a small one, a large scratch in one stage), where every term counts."""
    draw = random.Random(stages)
    for _ in range(count):
        chain = uneven_chain(draw, stages)
        refused = attempt(rotor.solve, chain, -1)
        assert isinstance(refused, BudgetTooSmall)
        needed = refused.needed
        assert enumerated.least_persistent_time(chain, needed - 1) is None
        for budget in (needed, needed + draw.randint(1, 4), draw.randint(needed, rotor.solve(chain, None).peak)):
            plan = rotor.solve(chain, budget)
            assert enumerated.replay(chain, plan.runs) == (plan.time, plan.peak)
            assert plan.time == enumerated.least_persistent_time(chain, budget)
            assert plan.peak <= budget


def test_the_gradient_that_counts_is_the_last_stages() -> None:
    """δ^2 is large and δ^1 small. While stage 1 is run before the loss, nothing but what the loss needs is counted.

    By hand: at B 2, a^0 1, a^1 1, ā^2 1 and δ^2 9 are held and δ^1 1 is made, 13 bytes; F_all 1 comes again later and
    holds a^0 1, δ^1 1, ā^1 5. To run stage 1 only once, ā^1 5 must stand in for a^1 at B 2: 17 bytes.
    """
    chain = Chain((1, 1), (1, 1), (1, 1, 1), (5, 1), (1, 1, 9), (0, 0), (0, 0))
    with pytest.raises(BudgetTooSmall) as caught:
        rotor.solve(chain, 12)
    assert caught.value.needed == 13
    assert [rotor.solve(chain, budget).time for budget in (13, 16, 17)] == [5, 5, 4]


def test_every_threshold_counts() -> None:
    """Chains found because leaving a threshold out makes their plans slower or promises the impossible.

    The optima of the first two are enumeration's. In the last, stage 1 must run again for stage 2's backward run, with
    δ^2 held: 9 for a^0, 9 for ā^1, 9 of scratch, 2 for δ^2.
    """
    recorded = Chain(
        (2, 3, 5, 0), (0, 5, 4, 0), (0, 1, 9, 9, 2), (1, 14, 10, 2), (0, 1, 1, 1, 2), (9, 9, 9, 2), (9, 1, 1, 2), 9
    )
    assert rotor.solve(recorded, 30).time == 29
    turned = Chain(
        (3, 2, 5, 0), (1, 4, 3, 5), (2, 1, 0, 9, 1), (1, 5, 10, 1), (0, 1, 0, 2, 9), (2, 0, 9, 1), (9, 2, 1, 2), 9
    )
    assert rotor.solve(turned, 29).time == 38
    swept = Chain((3, 4), (4, 0), (9, 9, 2), (9, 2), (0, 0, 2), (9, 2), (2, 1), 9)
    refused = attempt(rotor.solve, swept, 28)
    assert isinstance(refused, BudgetTooSmall)
    assert refused.needed == 29


@pytest.mark.parametrize(
    ("budget", "time"), [(6, 25), (7, 20), (8, 19), (9, 18), (10, 17), (11, 17), (12, 16), (13, 15), (None, 15)]
)
def test_times_of_five_equal_stages(budget: int | None, time: int) -> None:
    assert rotor.solve(FIVE, budget).time == time


@pytest.mark.parametrize("slots", range(1, 6))
@pytest.mark.parametrize("stages", [0, 1, 2, 5, 9, 20, 33])
def test_equal_stages_need_as_many_runs_as_revolve_proves(stages: int, slots: int) -> None:
    """Records so large that only one is ever held, and never across the loss: binomial checkpointing.

    Reversing n steps with c values stored takes r n - C(c + r, c + 1) forward runs, r the least with C(c + r, c) >= n
    (Griewank and Walther 2000); on top, each stage is recorded once. The loss is the last of the n = L + 1 steps.
    """
    large = 1000
    chain = replace(equal_chain(stages, saved=large, grad=0, backward=0), loss_scratch=large)
    n, r = stages + 1, 0
    while comb(slots + r, slots) < n:
        r += 1
    budget = 1 + slots + large if stages else 1 + large
    assert rotor.solve(chain, budget).time == r * n - comb(slots + r, slots + 1) + stages


def test_persistence_is_not_always_best() -> None:
    """The witness: at 8 bytes, a value dropped once it has been used twice, and made again, saves a run."""
    assert rotor.solve(FIVE, 8).time == 19
    best = exact_chain.solve(FIVE, 8)
    assert (best.time, best.peak) == enumerated.replay(FIVE, best.runs) == (18, 8)


@given(chains(most_stages=7), st.integers(0, 60), st.integers(1, 5))
@settings(max_examples=200, deadline=None)
def test_more_memory_is_never_slower(chain: Chain, budget: int, more: int) -> None:
    answer = attempt(rotor.solve, chain, budget)
    if isinstance(answer, BudgetTooSmall):
        assert answer.needed > budget
    else:
        assert rotor.solve(chain, budget + more).time <= answer.time


def test_golden_plans() -> None:
    def runs(budget: int) -> str:
        return ", ".join(rotor.solve(FIVE, budget).runs)

    assert runs(13) == "F_all 1, F_all 2, F_all 3, F_all 4, F_all 5, loss, B 5, B 4, B 3, B 2, B 1"
    assert runs(8) == (
        "F_ck 1, F_ck 2, F_none 3, F_ck 4, F_all 5, loss, B 5, F_all 4, B 4, F_all 2, F_all 3, B 3, B 2, F_all 1, B 1"
    )


def test_a_budget_too_small_names_the_place_and_the_remedy() -> None:
    with pytest.raises(BudgetTooSmall) as caught:
        rotor.solve(FIVE, 5)
    assert str(caught.value) == (
        "no persistent plan fits in 5 bytes: this chain of 5 stages needs at least 6. "
        "The narrowest place is B 5. Raise the budget to 6, or make that stage smaller."
    )
    assert (caught.value.budget, caught.value.needed) == (5, 6)


def test_needed_is_exact_when_the_grid_is_coarse() -> None:
    """At the least budget that works a thinned grid rounds every way to do it out of reach; a plan is found still."""
    for seed in range(12):
        chain = long_chain(20 + seed, seed)
        refused = attempt(rotor.solve, chain, 0)
        assert isinstance(refused, BudgetTooSmall)
        plan = rotor.solve(chain, refused.needed, slots=5 + seed)
        assert enumerated.replay(chain, plan.runs) == (plan.time, plan.peak)
        assert plan.peak <= refused.needed
        with pytest.raises(BudgetTooSmall):
            rotor.solve(chain, refused.needed - 1, slots=5 + seed)


def test_a_finer_grid_comes_closer() -> None:
    """Even steps lose time against the exact answer, less of it the more there are."""
    chain = long_chain(16, most=200)
    budget = rotor.solve(chain, None).peak // 3
    exact = rotor.solve(chain, budget)
    coarse, fine = (rotor.solve(chain, budget, slots=slots) for slots in (10, 300))
    assert exact.optimal
    assert not coarse.optimal
    assert exact.time <= fine.time < coarse.time
    assert fine.time <= 1.02 * exact.time


def test_numbers_beyond_64_bits() -> None:
    """Bytes and nanoseconds scale the answer, however large they are."""
    small = rotor.solve(FIVE, 8)
    huge = 10**25
    chain = equal_chain(5, value=huge, saved=2 * huge, grad=huge, forward=huge, backward=2 * huge)
    plan = rotor.solve(chain, 8 * huge)
    assert (plan.time, plan.peak, plan.runs) == (small.time * huge, small.peak * huge, small.runs)


@given(chains())
def test_a_chain_prints_and_parses(chain: Chain) -> None:
    assert Chain.parse(str(chain)) == chain == Chain.from_json(chain.to_json())


@pytest.mark.parametrize("text", ["", "\n", "forward_ns x", "forward_ns 1", "colour 1"])
def test_text_that_holds_no_chain(text: str) -> None:
    with pytest.raises(InvalidProblem):
        Chain.parse(text)


def test_fields_left_out() -> None:
    given_fields = {"forward_ns": [1], "backward_ns": [2], "value_bytes": [3, 4], "saved_bytes": [5]}
    assert Chain.from_json(given_fields) == Chain((1,), (2,), (3, 4), (5,), (3, 4), (0,), (0,), 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"forward_ns": None}, "forward_ns: null is not a list of whole numbers"),
        ({"backward_ns": [1]}, "backward_ns: length 1, not 2"),
        ({"value_bytes": [1, 1]}, "value_bytes: length 2, not 3"),
        ({"saved_bytes": [1, -1]}, "saved_bytes: entry 1 is -1, not a whole number >= 0"),
        ({"grad_bytes": [1, 2, 3.5]}, "grad_bytes: entry 2 is 3.5, not a whole number >= 0"),
        ({"forward_scratch": [0, True]}, "forward_scratch: entry 1 is true, not a whole number >= 0"),
        ({"loss_scratch": [0]}, "loss_scratch: [0] is not a whole number >= 0"),
        (
            {"colour": 1},
            "colour: there is no such field (known: forward_ns, backward_ns, value_bytes, saved_bytes, "
            "grad_bytes, forward_scratch, backward_scratch, loss_scratch)",
        ),
    ],
)
def test_what_is_wrong_with_a_chain_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidProblem) as caught:
        Chain.from_json(equal_chain(2).to_json() | change)
    assert str(caught.value) == message
    assert caught.value.field == next(iter(change))


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        (["F_all 2"], "run 0: F_all 2 needs value 1, which is not held"),
        (["F_all 1", "F_none 2"], "run 1: F_none 2 needs value 1, which is not held"),
        (["F_none 1", "F_none 2", "loss", "B 2"], "run 3: B 2 needs saved 2, which is not held"),
        (["F_ck 3"], "run 0: there is no run 'F_ck 3'"),
        (["drop saved 1"], "run 0: drop saved 1 needs saved 1, which is not held"),
        (["F_all 1", "F_all 2", "drop value 1"], "run 2: drop value 1 needs value 1, which is not held"),
        (["F_all 1", "F_all 2", "loss", "B 2"], "the gradient of the chain's input is never made"),
    ],
)
def test_the_replay_refuses_what_cannot_be_run(runs: list[str], message: str) -> None:
    with pytest.raises(InvalidPlan) as caught:
        replay(equal_chain(2), runs)
    assert str(caught.value) == message


def test_the_replay_by_hand() -> None:
    """One stage: a^0 1; F_all adds 3: 4; the loss adds 7 with 2 of scratch: 13, then 11; B adds d^0 5 and 1: 17."""
    chain = Chain((10,), (20,), (1, 1), (3,), (5, 7), (4,), (1,), 2)
    seen = replay(chain, ["F_all 1", "loss", "B 1"])
    assert (seen.time, seen.peak, seen.at) == (30, 17, "B 1")
    assert enumerated.replay(chain, ["F_all 1", "loss", "B 1"]) == (30, 17)
