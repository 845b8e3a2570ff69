"""Checkpoints of least peak: against enumeration, against the paper's figures, and in linear time."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lowtide.errors import BudgetTooSmall, InvalidProblem
from lowtide.planners import min_peak
from lowtide.planners.min_peak import Objective
from lowtide.planners.sizes import Sizes
from tests.oracles import sizes as enumerated

ONES_12, ONES_400, DESCENDING = Sizes((1,) * 12), Sizes((1,) * 400), Sizes(tuple(range(10, 0, -1)))
few_values = st.sampled_from([0, 1, 2, 7]) | st.integers(0, 30) | st.sampled_from([10**18, 10**30])
lines = st.lists(few_values, min_size=1, max_size=8).map(lambda numbers: Sizes(tuple(numbers)))
objectives = st.sampled_from(Objective)


@given(lines, objectives)
@settings(max_examples=700, deadline=None)
@example(Sizes((0,)), Objective.SUM)
@example(Sizes((0, 0, 0)), Objective.PAPER)
@example(Sizes((1, 3, 1, 4, 0, 4, 1)), Objective.PAPER)
def test_the_peak_is_the_least_and_the_checkpoints_reach_it(sizes: Sizes, objective: Objective) -> None:
    """Promise and optimality at once: no choice of checkpoints has a lower peak, and the one returned has this one."""
    answer = min_peak.solve(sizes, objective=objective)
    assert answer.peak == enumerated.least_peak(sizes.bytes, objective.value)
    assert answer.peak == enumerated.peak(sizes.bytes, answer.layers, objective.value)
    assert answer.layers == tuple(sorted({0, len(sizes.bytes) - 1, *answer.layers}))


@pytest.mark.parametrize("objective", [Objective.ACTIVATIONS, Objective.PAPER, Objective.TORCH])
def test_the_linear_algorithm_is_the_recurrence(objective: Objective) -> None:
    """On lines longer than can be enumerated: sorted either way, with ties, zeros and a few huge layers."""
    draw = random.Random(4)
    for _ in range(400):
        n, top = draw.randint(2, 40), draw.choice([1, 2, 3, 9, 1000])
        d = [draw.choice([0, draw.randint(0, top), draw.randint(0, top) ** 2]) for _ in range(n)]
        order = draw.randrange(3)
        d = d if order == 0 else sorted(d, reverse=order == 1)
        assert min_peak.solve(Sizes(tuple(d)), objective=objective).peak == _recurrence(d, objective)


def test_the_search_for_the_least_sum_stops_no_earlier_than_it_may() -> None:
    """Lines long enough for many different bounds on a segment, where an answer one byte off is easily missed."""
    draw = random.Random(9)
    for _ in range(150):
        d = tuple(draw.randint(0, 12) for _ in range(11))
        assert min_peak.solve(Sizes(d), objective=Objective.SUM).peak == enumerated.least_peak(d, "sum")


def _recurrence(d: list[int], objective: Objective) -> int:
    n = len(d)
    M = [0] * (n - 1) + [d[-1]]
    for i in reversed(range(n - 1)):
        total, largest, pair, options = 0, d[i], 0, []
        for j in range(i + 1, n):
            total, largest = total + d[j], max(largest, d[j])
            pair = max(pair, total + d[j] + d[j - 1])
            held = {"activations": total - d[j], "paper": total + largest + d[j], "torch": pair}[objective.value]
            options.append(max(M[j], held))
        M[i] = d[i] + min(options)
    return M[0]


@pytest.mark.parametrize(
    ("sizes", "objective", "peak"),
    [
        (ONES_12, "sum", 5),
        (ONES_12, "activations", 5),
        (ONES_12, "paper", 8),
        (ONES_12, "torch", 8),
        (ONES_12, "reentrant", 8),
        (ONES_400, "activations", 28),
        (ONES_400, "paper", 31),
        (ONES_400, "torch", 31),
        (DESCENDING, "sum", 26),
        (DESCENDING, "activations", 27),
        (DESCENDING, "paper", 45),
        (DESCENDING, "torch", 44),
        (DESCENDING, "reentrant", 54),
    ],
)
def test_peaks_of_record(sizes: Sizes, objective: str, peak: int) -> None:
    assert min_peak.solve(sizes, objective=Objective(objective)).peak == peak


@pytest.mark.parametrize(
    ("objective", "layers"),
    [
        (Objective.SUM, (0, 3, 6, 9, 11)),
        (Objective.ACTIVATIONS, (0, 2, 6, 9, 11)),
        (Objective.PAPER, (0, 5, 8, 10, 11)),
        (Objective.TORCH, (0, 5, 8, 10, 11)),
        (Objective.REENTRANT, (0, 4, 7, 9, 10, 11)),
    ],
)
def test_golden_checkpoints(objective: Objective, layers: tuple[int, ...]) -> None:
    """Segments grow shorter to the right, because a checkpoint is freed on the way back; `sum` has them even."""
    assert min_peak.solve(ONES_12, objective=objective).layers == layers


def test_rebuilding_once_is_not_the_least_memory() -> None:
    """The witness: rebuilding values from rebuilt values holds less than any choice of checkpoints.

    With 12 unit layers, keeping the input alone and rebuilding each value from it when backward asks for it holds the
    input, two neighbouring values and two gradients: 5, where the best checkpoints hold 8.
    """
    always_from_the_input = 1 + 2 + 2
    assert min_peak.solve(ONES_12, objective=Objective.TORCH).peak > always_from_the_input


@given(lines, objectives, st.data())
@settings(max_examples=300, deadline=None)
def test_a_larger_layer_never_lowers_the_peak(sizes: Sizes, objective: Objective, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, len(sizes.bytes) - 1))
    grown = list(sizes.bytes)
    grown[k] += data.draw(st.integers(1, 9))
    before = min_peak.solve(sizes, objective=objective).peak
    assert min_peak.solve(Sizes(tuple(grown)), objective=objective).peak >= before


def test_a_budget_below_the_peak_names_the_budget_that_works() -> None:
    with pytest.raises(BudgetTooSmall) as caught:
        min_peak.solve(ONES_12, 7)
    assert str(caught.value) == (
        "no choice of checkpoints fits in 7 bytes: these 12 layers need at least 8. Raise the budget to 8."
    )
    assert (caught.value.budget, caught.value.needed) == (7, 8)
    assert min_peak.solve(ONES_12, 8).peak == 8


@pytest.mark.parametrize("objective", [Objective.ACTIVATIONS, Objective.PAPER, Objective.TORCH])
def test_time_grows_with_the_layers_and_not_their_square(objective: Objective) -> None:
    """Ten times the layers take less than thirty times as long, whatever the order of the sizes."""
    for make in (lambda n: [1] * n, lambda n: range(n, 0, -1), lambda n: range(n), lambda n: [0, n] * (n // 2)):
        seconds = []
        for n in (20_000, 200_000):
            sizes = Sizes(tuple(make(n)))
            start = time.process_time()
            min_peak.solve(sizes, objective=objective)
            seconds.append(time.process_time() - start)
        assert seconds[1] < 30 * max(seconds[0], 0.005)


@given(lines)
def test_sizes_print_and_parse(sizes: Sizes) -> None:
    assert Sizes.parse(str(sizes)) == sizes == Sizes.from_json(sizes.to_json())


@pytest.mark.parametrize("text", ["", "bytes 1 x", "bytes 1 -1", "byte 1"])
def test_text_that_holds_no_sizes(text: str) -> None:
    with pytest.raises(InvalidProblem):
        Sizes.parse(text)


@pytest.mark.parametrize(
    ("data", "field", "message"),
    [
        ({}, "bytes", "bytes: missing"),
        ({"bytes": [1], "ns": [1]}, "ns", "ns: there is no such field (known: bytes)"),
        ({"bytes": []}, "bytes", "bytes: there must be at least one layer"),
        ({"bytes": [1, -2]}, "bytes", "bytes: entry 1 is -2, not a whole number >= 0"),
        ({"bytes": [1.0]}, "bytes", "bytes: entry 0 is 1.0, not a whole number >= 0"),
        ({"bytes": [True]}, "bytes", "bytes: entry 0 is true, not a whole number >= 0"),
        ({"bytes": "12"}, "bytes", 'bytes: "12" is not a list of whole numbers'),
        ([1], "problem", "problem: [1] is not an object with fields"),
    ],
)
def test_what_is_wrong_with_a_problem_is_named(data: object, field: str, message: str) -> None:
    with pytest.raises(InvalidProblem) as caught:
        Sizes.from_json(data)
    assert (caught.value.field, str(caught.value)) == (field, message)
