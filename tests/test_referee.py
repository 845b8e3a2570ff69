"""The referee against numbers worked out by hand, and against a slow reading of the same rules."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide import referee
from lowtide.errors import InvalidPlan
from lowtide.program import Op, Phase, Program, Role, Value
from oracles import slow_referee
from oracles.programs import programs

STATIC, ACTIVATION, GRADIENT, OUTPUT = Role
F, B = Phase.FORWARD, Phase.BACKWARD


def program(values: list[tuple[int, Role]], ops: list[Op]) -> Program:
    return Program(tuple(Value(f"v{i}", count, role) for i, (count, role) in enumerate(values)), tuple(ops))


# Two layers: w is static; a, b are activations; db, da gradients, dw an output.
CHAIN = program(
    [(100, STATIC), (10, ACTIVATION), (20, ACTIVATION), (20, GRADIENT), (7, OUTPUT)],
    [
        Op("a", F, (0,), (1,), ns=1),
        Op("b", F, (0, 1), (2,), ns=2, scratch=5),
        Op("db", B, (2,), (3,), ns=4),
        Op("dw", B, (0, 1, 3), (4,), ns=8, scratch=3),
    ],
)


@pytest.mark.parametrize(
    ("runs", "timeline"),
    [
        # Straight through: a; a b +5; a b db; a db dw +3.
        ([0, 1, 2, 3], [10, 35, 50, 40]),
        # a again just before its last read: it goes after b.
        ([0, 1, 2, 0, 3], [10, 35, 40, 30, 40]),
        # An activation that is made and not read before it is made again counts while it is made, no longer.
        ([0, 0, 1, 2, 3], [10, 10, 35, 50, 40]),
        # b again though nothing reads it: it counts while it runs, and holds a for it.
        ([0, 1, 2, 1, 3], [10, 35, 50, 55, 40]),
        # dw again: the first copy stays to the end, the second counts while it runs.
        ([0, 1, 2, 3, 3], [10, 35, 50, 40, 47]),
        # And when something runs after it, the first copy is still there.
        ([0, 1, 2, 3, 0], [10, 35, 50, 40, 17]),
    ],
)
def test_a_chain(runs: list[int], timeline: list[int]) -> None:
    outcome = referee.run(CHAIN, runs)
    assert list(outcome.timeline) == timeline
    assert outcome.peak == max(timeline)
    assert outcome.at == timeline.index(max(timeline))
    assert outcome.time == sum((1, 2, 4, 8)[run] for run in runs)
    assert outcome.counts == tuple(runs.count(i) for i in range(4))


def test_a_skip_holds_what_it_skips_with() -> None:
    skip = program(
        [(10, ACTIVATION), (1, ACTIVATION), (2, ACTIVATION), (4, ACTIVATION)],
        [Op("x", F, (), (0,)), Op("y", F, (0,), (1,)), Op("z", F, (1,), (2,)), Op("add", F, (0, 2), (3,))],
    )
    assert referee.run(skip, [0, 1, 2, 3]).timeline == (10, 11, 13, 16)
    assert referee.run(skip, [0, 1, 2, 0, 3]).timeline == (10, 11, 3, 12, 16)


def test_an_op_of_several_results_that_runs_again_writes_them_all_again() -> None:
    """The kept one dies where its next copy is made, and is there beside it while nothing reads it."""
    several = program(
        [(10, ACTIVATION), (1, ACTIVATION), (2, GRADIENT), (4, GRADIENT), (8, GRADIENT)],
        [Op("xy", F, (), (0, 1)), Op("p", B, (0,), (2,)), Op("q", B, (1, 2), (3,)), Op("r", B, (0, 3), (4,))],
    )
    assert referee.run(several, [0, 1, 2, 3]).timeline == (11, 13, 17, 22)
    # At the rerun: the new x (10) and y (1), p (2), and nothing of the old: y is not read before it is made again.
    assert referee.run(several, [0, 1, 0, 2, 3]).timeline == (11, 12, 13, 17, 22)
    # Here x is made again for r, and y with it, though only while that runs.
    assert referee.run(several, [0, 1, 2, 0, 3]).timeline == (11, 13, 7, 15, 22)


def test_an_output_is_held_to_the_end_and_a_second_copy_to_its_last_read() -> None:
    output = program(
        [(10, OUTPUT), (1, ACTIVATION), (2, GRADIENT)],
        [Op("o", F, (), (0,)), Op("a", F, (0,), (1,)), Op("b", B, (0,), (2,)), Op("c", B, (2,), ())],
    )
    assert referee.run(output, [0, 1, 2, 3]).timeline == (10, 11, 12, 12)
    assert referee.run(output, [0, 1, 0, 2, 3]).timeline == (10, 11, 20, 22, 12)


def test_an_unread_value_counts_while_it_is_made() -> None:
    unread = program([(10, ACTIVATION), (3, ACTIVATION)], [Op("a", F, (), (0,), scratch=2), Op("b", F, (), (1,))])
    assert referee.run(unread, [0, 1]).timeline == (12, 3)


def test_static_values_do_not_count_and_nothing_needs_to_make_them() -> None:
    static = program([(1 << 40, STATIC), (3, ACTIVATION)], [Op("a", F, (0,), (1,))])
    assert referee.run(static, [0, 0]).timeline == (3, 3)


def test_nothing_at_all() -> None:
    assert referee.run(Program((), ()), []) == referee.Outcome((), 0, 0, 0, ())


def test_ties_go_to_the_first_run_that_reaches_the_peak() -> None:
    level = program([(5, ACTIVATION), (5, ACTIVATION)], [Op("a", F, (), (0,)), Op("b", F, (), (1,))])
    assert referee.run(level, [0, 1, 0]).at == 0


ONCE = program([(1, ACTIVATION), (1, GRADIENT)], [Op("draw", F, (), (0,), once="draws"), Op("use", B, (0,), (1,))])


@pytest.mark.parametrize(
    ("tried", "runs", "position", "message"),
    [
        (ONCE, [0, 1, 0], 2, "run 2: op 0 (draw) runs again: draws"),
        (ONCE, [0], None, "op 1 (use) never runs"),
        (ONCE, [], None, "op 0 (draw) never runs"),
        (ONCE, [1, 0], 0, "run 0: op 1 (use) reads value 0 (v0) before it is made"),
        (ONCE, [0, 1, 2], 2, "run 2: there is no op 2"),
        (ONCE, [0, -1, 1], 1, "run 1: there is no op -1"),
        (CHAIN, [0, 2, 1, 3], 1, "run 1: op 2 (db) reads value 2 (v2) before it is made"),
        (CHAIN, [1, 0, 3, 2], 0, "run 0: op 1 (b) reads value 1 (v1) before it is made"),
    ],
)
def test_what_cannot_be_carried_out(tried: Program, runs: list[int], position: int | None, message: str) -> None:
    with pytest.raises(InvalidPlan) as error:
        referee.run(tried, runs)
    assert (str(error.value), error.value.position) == (message, position)


@st.composite
def sequences(draw: st.DrawFn) -> tuple[Program, list[int]]:
    """A program and runs of it: mostly ones that can be carried out, some damaged, some anything."""
    made = draw(programs())
    count = len(made.ops)
    if draw(st.integers(0, 5)) == 0:
        return made, draw(st.lists(st.integers(-1, count), max_size=2 * count))
    runs: list[int] = []
    there = {i for i, value in enumerate(made.values) if value.role is STATIC}
    for _ in range(draw(st.integers(count, 3 * count))):
        pool = [i for i, op in enumerate(made.ops) if there.issuperset(op.reads) and not (op.once and i in runs)]
        if not pool:
            break
        runs.append(draw(st.sampled_from(pool)))
        there.update(made.ops[runs[-1]].writes)
    for i in range(count):  # What has not run by now can run in the program's order.
        if i not in runs:
            runs.append(i)
    if runs and draw(st.integers(0, 5)) == 0:
        at = draw(st.integers(0, len(runs) - 1))
        runs[at : at + 1] = draw(st.lists(st.integers(0, count - 1), max_size=2))
    return made, runs


@settings(max_examples=2000, deadline=None)
@given(sequences())
def test_as_a_slow_reading_of_the_rules_says(case: tuple[Program, list[int]]) -> None:
    """The same timeline, or the same run refused."""
    made, runs = case
    expected = _slow(made, runs)
    if isinstance(expected, slow_referee.Refused):
        with pytest.raises(InvalidPlan) as error:
            referee.run(made, runs)
        assert error.value.position == expected.position
        return
    outcome = referee.run(made, runs)
    assert list(outcome.timeline) == expected
    assert outcome.peak == max(expected, default=0)
    assert outcome.time == sum(made.ops[run].ns for run in runs)
    assert outcome.counts == tuple(runs.count(i) for i in range(len(made.ops)))


def _slow(made: Program, runs: list[int]) -> list[int] | slow_referee.Refused:
    try:
        return slow_referee.timeline(made, runs)
    except slow_referee.Refused as refused:
        return refused


def ladder(layers: int) -> Program:
    """A chain forward and back."""
    values = [(4, ACTIVATION)] * layers + [(4, GRADIENT)] * layers
    ops = [Op("f", F, (i - 1,) if i else (), (i,), ns=1) for i in range(layers)]
    ops += [Op("b", B, (layers - 1 - i, *((layers + i - 1,) if i else ())), (layers + i,), ns=1) for i in range(layers)]
    return program(values, ops)


def test_ten_thousand_runs_take_milliseconds() -> None:
    """Under 50 ms on an idle machine (bench/referee.py prints the figure); three times that is allowed here."""
    tall = ladder(5000)
    referee.run(tall, range(10_000))
    best = min(_seconds(tall) for _ in range(5))
    assert best < 0.15


def _seconds(tall: Program) -> float:
    begin = time.perf_counter()
    referee.run(tall, range(10_000))
    return time.perf_counter() - begin
