"""A Plan is a file: it prints, parses, and a broken one is refused with the field named."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import InvalidPlan
from lowtide.plan import Bound, Plan, Reckoned

COUNT = st.integers(0, 1 << 60)
WORDS = st.text(max_size=12) | st.sampled_from(['a "b"', "two\nlines", "\u2028\x85\x1c\r", "naïve 変数 🌊", "1"])
PLANS = st.builds(
    Plan,
    runs=st.lists(st.integers(0, 40)).map(tuple),
    budget=COUNT,
    peak=COUNT,
    time=COUNT,
    planner=WORDS,
    searched=WORDS,
    program=WORDS,
    bound=st.builds(Bound, time=COUNT, by=WORDS),
    static=COUNT,
    narrowest=WORDS,
    reckoned=st.none() | st.builds(Reckoned, peak=COUNT, time=COUNT, ignores=WORDS),
    costs=WORDS,
)
GOOD = Plan((0, 1, 0, 2), 100, 90, 12, "greedy", "some", "0123456789abcdef", Bound(10, "every op runs"), 7)


@given(PLANS)
def test_text_and_json_read_back(plan: Plan) -> None:
    assert Plan.parse(str(plan)) == plan
    assert len(str(plan).splitlines()) == (12 if plan.reckoned is None else 13)
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@given(PLANS)
def test_a_file_reads_back(tmp_path_factory: pytest.TempPathFactory, plan: Plan) -> None:
    path = Path(tmp_path_factory.getbasetemp()) / "plan"
    plan.save(path)
    assert Plan.load(path) == plan


def test_what_follows_from_the_fields() -> None:
    assert (GOOD.gap, GOOD.total, GOOD.reruns) == (2, 97, 1)
    summary = GOOD.summary()
    for fact in ("97 B", "7 B static", "90 B", "107 B", "1 of 4 runs", "every op runs", "20.00 %", "greedy: some"):
        assert fact in summary
    assert "0 %" in replace(GOOD, bound=Bound(0, "")).summary()


def test_the_summary_says_what_the_method_promised() -> None:
    assert "promised" not in GOOD.summary()
    lines = replace(GOOD, time=4_000_000, reckoned=Reckoned(80, 3_000_000, "gradients")).summary().splitlines()
    assert lines[-2] == "promised  80 B in the step and 3.000 ms by the method, whose model leaves out gradients"
    assert lines[-1] == "refereed  90 B in the step and 4.000 ms"


@pytest.mark.parametrize(
    ("reckoned", "message"),
    [
        (1, "reckoned is 1, not an object"),
        ({}, "what a method reckons has a field 'ignores', which is missing"),
        ({"peak": 1, "time": 2, "ignores": "", "colour": 3}, "what a method reckons has no field 'colour'"),
        ({"peak": -1, "time": 2, "ignores": ""}, "not a peak and a time >= 0 and words"),
    ],
)
def test_a_broken_promise_is_named(reckoned: object, message: str) -> None:
    with pytest.raises(InvalidPlan, match=message):
        Plan.from_json(GOOD.to_json() | {"reckoned": reckoned})


TEXT = str(GOOD)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("lowtide plan 1", "lowtide plan 2", ["format", "lowtide plan 2", "lowtide plan 1"]),
        ("peak 90", "peak", ["line 4", "'peak'"]),
        ("peak 90", "peak ninety", ["line 4", "'peak'"]),
        ("peak 90", "summit 90", ["'peak'", "missing"]),
        ("peak 90\n", "", ["'peak'"]),
        ("peak 90", "peak 90\npeak 90", ["line 5", "'peak'", "twice"]),
        ("peak 90", "peak -1", ["peak", "-1"]),
        ("peak 90", "peak 90.5", ["peak", "90.5"]),
        ("peak 90", "peak true", ["peak", "True"]),
        ("static 7", 'static "7"', ["static", "'7'"]),
        ("runs [0, 1, 0, 2]", "runs 7", ["runs", "7"]),
        ("runs [0, 1, 0, 2]", "runs [0, 1.5]", ["runs", "1.5"]),
        ("runs [0, 1, 0, 2]", 'runs "012"', ["runs"]),
        ('planner "greedy"', "planner 7", ["planner", "7"]),
        ('"time": 10, ', "", ["bound", "time"]),
        ('"time": 10', '"time": 10.5', ["bound", "time", "10.5"]),
        ('"time": 10, ', '"time": 10, "of": 1, ', ["bound", "of"]),
        ('bound {"time": 10, "by": "every op runs"}', "bound 10", ["bound"]),
    ],
)
def test_a_broken_plan_is_refused_where_it_breaks(old: str, new: str, named: list[str]) -> None:
    broken = TEXT.replace(old, new, 1)
    assert broken != TEXT
    with pytest.raises(InvalidPlan) as error:
        Plan.parse(broken)
    assert all(word in str(error.value) for word in named), error.value


def test_an_object_that_is_no_plan() -> None:
    with pytest.raises(InvalidPlan, match="not a plan"):
        Plan.from_json([])  # type: ignore[arg-type]
    with pytest.raises(InvalidPlan, match="'weight'"):
        Plan.from_json({**GOOD.to_json(), "weight": 1})


@given(st.integers(0, len(TEXT)), st.integers(0, 9), st.text(max_size=3))
def test_any_damage_is_an_error_of_ours(start: int, length: int, instead: str) -> None:
    with contextlib.suppress(InvalidPlan):
        Plan.parse(TEXT[:start] + instead + TEXT[start + length :])
