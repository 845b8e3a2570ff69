"""`lowtide solve` against enumeration on a few hundred drawn problems; `bench/comparison.py` asks tens of thousands."""

from __future__ import annotations

from dataclasses import replace
from math import comb
from typing import Any

import pytest

from tests.oracles import chains, comparison, dags, sizes
from tests.oracles.comparison import QUESTIONS, ask
from tests.planners.drawn import equal_chain

SLOW = {"rotor longer", "exact chain longer", "exact dag larger"}


@pytest.mark.parametrize("name", sorted(QUESTIONS.keys() - SLOW))
def test_answers_agree_with_enumeration(name: str) -> None:
    """Another seed than the benchmark's."""
    assert list(QUESTIONS[name].disagreements(60, seed=2)) == []


@pytest.mark.parametrize("name", sorted(QUESTIONS.keys() - SLOW))
def test_a_wrong_answer_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever number is made one larger."""
    honest = comparison.ask

    def lying(method: str, line: dict[str, Any]) -> dict[str, Any]:
        answer = honest(method, line)
        for field in ("needed", "cost", "time", "peak"):
            if field in answer:
                return answer | {field: answer[field] + 1}
        return answer

    monkeypatch.setattr(comparison, "ask", lying)
    # A strategy's peak beside its time, and a plan of a thinned grid, are only held to what they promise.
    assert len(list(QUESTIONS[name].disagreements(20, seed=2))) == 20


def revolve(stages: int, slots: int) -> int:
    """Forward runs that reverse so many steps with so many values stored (Griewank and Walther 2000)."""
    r = 0
    while comb(slots + r, slots) < stages:
        r += 1
    return r * stages - comb(slots + r, slots + 1)


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("stages", [0, 1, 2, 3, 4])
def test_the_enumeration_of_chains_agrees_with_binomial_checkpointing(stages: int, slots: int) -> None:
    """Records so large that only one is ever held, and never across the loss: besides being recorded once, each stage
    runs forward as often as Revolve's closed form says, among persistent plans and among all.
    """
    large = 1000
    chain = replace(equal_chain(stages, saved=large, grad=0, backward=0), loss_scratch=large)
    budget = 1 + slots + large
    runs = revolve(stages + 1, slots) + stages
    assert chains.least_persistent_time(chain, budget) == runs
    assert chains.least_time(chain, budget) == runs


def test_the_enumerations_agree_with_hand_worked_values() -> None:
    """Each worked out where the methods are documented."""
    assert sizes.least_peak((1,) * 12, "torch") == 8
    assert sizes.peak((1,) * 12, (0, 5, 8, 10, 11), "torch") == 8
    assert sizes.least_peak((1,) * 12, "sum") == 5
    row = dags.Graph((4, 2, 1), (1, 2, 3), ((0, 1), (1, 2)))
    assert dags.formula(row, (frozenset([0]), frozenset([0, 1]), frozenset([0, 1, 2]))) == (3, 10)
    assert dags.stored_cost(row, frozenset([1])) == dags.least_cost(row) == 2
    assert dags.least_peak(dags.program(row)) == 10
    five = equal_chain(5)
    assert [chains.least_persistent_time(five, budget) for budget in (5, 6, 8, 13)] == [None, 25, 19, 15]
    assert [chains.least_time(five, budget) for budget in (5, 6, 8, 13)] == [None, 25, 18, 15]


def ask_sizes(numbers: list[int]) -> dict[str, int]:
    found = {}
    for objective in comparison.OBJECTIVES:
        line = {"problem": {"bytes": numbers}, "budget": None, "objective": objective}
        found[objective] = ask("min_peak", line)["peak"]
    return found


def test_values_to_hold_of_sizes() -> None:
    assert ask_sizes([1] * 12) == {"sum": 5, "activations": 5, "paper": 8, "torch": 8, "reentrant": 8}
    many = ask_sizes([1] * 400)
    assert (many["activations"], many["paper"], many["torch"]) == (28, 31, 31)
    falling = {"sum": 26, "activations": 27, "paper": 45, "torch": 44, "reentrant": 54}
    assert ask_sizes(list(range(10, 0, -1))) == falling


@pytest.mark.parametrize(
    ("method", "times"), [("rotor", [25, 20, 19, 18, 17, 17, 16, 15]), ("exact", [25, 20, 18, 17, 17, 16, 16, 15])]
)
def test_values_to_hold_of_a_chain(method: str, times: list[int]) -> None:
    problem = {"forward_ns": [1] * 5, "backward_ns": [2] * 5, "value_bytes": [1] * 6, "saved_bytes": [2] * 5}
    found = [ask(method, {"problem": problem, "budget": budget})["time"] for budget in range(6, 14)]
    assert found == times


def test_a_graph_that_nothing_splits() -> None:
    """Values 1 and 2 are stored both or in one piece; the ends are not counted. Published code fails on it."""
    problem = {"bytes": [5, 6, 1, 5], "ns": [1] * 4, "edges": [[0, 1], [0, 2], [1, 2], [1, 3], [2, 3]]}
    assert ask("closed_sets", {"problem": problem, "budget": None})["cost"] == 7


def test_several_sinks() -> None:
    """One value of 3 and two made from it, of 2 and 5. In one block: 2 * 10. Cut before the sinks: first 2 * 3, and 7
    ahead; then 3 kept and 2 * 7.
    """
    problem = {"bytes": [3, 2, 5], "ns": [1, 10, 100], "edges": [[0, 1], [0, 2]]}
    found = ask("lower_sets", {"problem": problem, "budget": 17})
    assert (found["time"], found["peak"], found["sequence"]) == (110, 17, [[0], [0, 1, 2]])
    # Cut once more: 3 kept, 2 * 2 and 5 ahead; then 3 kept and 2 * 5.
    assert ask("lower_sets", {"problem": problem, "budget": None})["peak"] == 13
