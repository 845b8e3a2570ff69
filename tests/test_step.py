"""Several graphs as one step: joined for planners, split and settled again, on programs small enough to write out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lowtide import referee
from lowtide.capture import step
from lowtide.program import Op, Phase, Program, Role, Value
from oracles.programs import programs

F, B = Phase.FORWARD, Phase.BACKWARD


def graph(name: str, backward: bool = True) -> Program:
    """One activation forward; enter, with scratch for a loss, and one gradient backward."""
    values = [Value(f"{name} a", 10, Role.ACTIVATION)]
    ops = [Op(f"{name} f", F, (), (0,), ns=1)]
    if backward:
        values += [Value(f"{name} in", 1, Role.GRADIENT), Value(f"{name} g", 5, Role.OUTPUT)]
        ops += [Op("enter", B, (), (1,), scratch=100, once="comes in"), Op(f"{name} b", B, (0, 1), (2,), ns=2)]
    return Program(tuple(values), tuple(ops))


FIRST, MIDDLE, LAST = graph("first"), graph("middle", backward=False), graph("last")
THREE = [FIRST, MIDDLE, LAST]


def test_joined_the_backwards_run_in_reverse() -> None:
    joined = step.join(THREE)
    assert [op.name for op in joined.ops] == ["first f", "middle f", "last f", "enter", "last b", "enter", "first b"]
    assert joined.boundary == 3
    names = [[joined.values[v].name for v in (*op.reads, *op.writes)] for op in joined.ops]
    assert names[2:5] == [["last a"], ["last in"], ["last a", "last in", "last g"]]
    assert names[6] == ["first a", "first in", "first g"]


def test_only_the_last_graph_meets_the_loss() -> None:
    assert [op.scratch for op in step.join(THREE).ops if op.name == "enter"] == [100, 0]


def test_one_graph_is_its_own_step() -> None:
    assert step.join([FIRST]) is FIRST
    assert step.split([FIRST], [0, 1, 0, 2]) == [[0, 1, 0, 2]]
    assert step.settle([FIRST], (0, 1, 2)) == [0, 1, 2]


def test_split_gives_every_graph_its_own_runs() -> None:
    #       first f, middle f, last f, last enter, last f again, last b, first enter, first f again, first b
    runs = [0, 1, 2, 3, 2, 4, 5, 0, 6]
    assert step.split(THREE, runs) == [[0, 1, 0, 2], [0], [0, 1, 0, 2]]
    assert step.settle(THREE, runs) == runs


def test_settle_puts_a_run_where_its_graph_runs() -> None:
    """The first graph's rerun, planned in the midst of the last one's backward, waits for its own backward's turn;
    before that has begun, it can only run in its own forward.
    """
    assert step.settle(THREE, [0, 1, 2, 3, 5, 0, 4, 6]) == [0, 1, 2, 3, 4, 5, 0, 6]
    assert step.settle(THREE, [0, 1, 2, 3, 0, 4, 5, 6]) == [0, 0, 1, 2, 3, 4, 5, 6]
    assert step.settle(THREE, [2, 1, 0, 3, 4, 5, 6]) == [0, 1, 2, 3, 4, 5, 6]


def test_a_graph_hands_over_at_the_end_of_its_forward_and_of_its_backward() -> None:
    """A run between leave and enter is part of the forward module, which returns when all of it has run; and a run
    after the gradients are handed over is part of the backward module.
    """
    value = Value("a", 10, Role.ACTIVATION)
    left = Value("left", 0, Role.ACTIVATION)
    entered = Value("in", 1, Role.GRADIENT)
    ops = (
        Op("f", F, (), (0,)),
        Op("leave", F, (0,), (1,), once="out"),
        Op("enter", B, (1,), (2,), once="in"),
        Op("b", B, (0, 2), (3,)),
        Op("hand over gradients", B, (3,), (), once="given"),
    )
    program = Program((value, left, entered, Value("g", 5, Role.OUTPUT)), ops)
    assert step.settle([program], [0, 1, 0, 2, 3, 4, 3]) == [0, 0, 1, 2, 3, 3, 4]
    assert step.settle([program, program], [0, 1, 0, 2, 3, 2, 4, 5, 6, 7, 8, 9]) == [0, 0, 1, 2, 2, 3, *range(4, 10)]


@given(st.lists(programs(), min_size=1, max_size=3), st.data())
def test_a_settled_sequence_is_carried_out_graph_by_graph(several: list[Program], data: st.DataObject) -> None:
    """It has the same runs, is valid, and splits into the same parts."""
    joined = step.join(several)
    runs: list[int] = []
    there = {i for i, value in enumerate(joined.values) if value.role is Role.STATIC}
    for _ in range(2 * len(joined.ops)):
        pool = [i for i, op in enumerate(joined.ops) if there.issuperset(op.reads) and not (op.once and i in runs)]
        if pool:
            runs.append(data.draw(st.sampled_from(pool)))
            there.update(joined.ops[runs[-1]].writes)
    runs += [i for i in range(len(joined.ops)) if i not in runs]
    settled = step.settle(several, runs)
    assert sorted(settled) == sorted(runs)
    for program, part, was in zip(several, step.split(several, settled), step.split(several, runs), strict=True):
        leaves = {i for i, op in enumerate(program.ops) if op.name in ("leave", "hand over gradients")}
        assert [i for i in part if i not in leaves] == [i for i in was if i not in leaves]
    referee.run(joined, settled)
