"""The views of the papers' methods on a Program, the way back to runs, and the menu from which a plan is taken."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lowtide import referee
from lowtide.errors import BudgetTooSmall
from lowtide.plan import Plan
from lowtide.planners import (
    closed_sets_program,
    exact_chain,
    lower_sets,
    lower_sets_program,
    min_peak_program,
    rotor,
    rotor_program,
)
from lowtide.planners.chain import Chain
from lowtide.planners.chain_view import NOTHING, Line
from lowtide.planners.closed_sets import plans as storages
from lowtide.planners.dag import Dag
from lowtide.planners.dag_view import Graph
from lowtide.planners.menu import Candidate, fastest
from lowtide.planners.settled import settled
from lowtide.planners.step import Step
from lowtide.program import Op, Phase, Program, Role, Value
from tests.oracles import dags
from tests.oracles.programs import mirrored, programs
from tests.planners.drawn import chains
from tests.planners.test_planners import chain as equal_layers

FORWARD, BACKWARD = Phase.FORWARD, Phase.BACKWARD


def as_program(problem: Chain) -> Program:
    """A step that is such a chain. a^0 is static, so that it has no bytes in the timeline; stage l writes a^l and,
    beside it, what it records beyond.
    """
    values = [Value("a0", problem.value_bytes[0], Role.STATIC)]
    ops: list[Op] = []
    plain, beside = [0], [0]
    for l in range(1, problem.stages + 1):
        size = problem.value_bytes[l]
        values += [Value(f"a{l}", size, Role.ACTIVATION)]
        values += [Value(f"r{l}", problem.saved_bytes[l - 1] - size, Role.ACTIVATION)]
        plain.append(len(values) - 2)
        beside.append(len(values) - 1)
        ns, scratch = problem.forward_ns[l - 1], problem.forward_scratch[l - 1]
        ops.append(Op(f"f{l}", FORWARD, (plain[l - 1],), (plain[l], beside[l]), ns, scratch))
    values.append(Value(f"d{problem.stages}", problem.grad_bytes[-1], Role.GRADIENT))
    ops.append(Op("loss", BACKWARD, (plain[-1],), (len(values) - 1,), 0, problem.loss_scratch))
    for l in range(problem.stages, 0, -1):
        values.append(Value(f"d{l - 1}", problem.grad_bytes[l - 1], Role.GRADIENT))
        reads = (len(values) - 2, plain[l], beside[l], plain[l - 1])
        ns, scratch = problem.backward_ns[l - 1], problem.backward_scratch[l - 1]
        ops.append(Op(f"b{l}", BACKWARD, reads, (len(values) - 1,), ns, scratch))
    return Program(tuple(values), tuple(ops))


def weighty(problem: Chain) -> Chain:
    """The chain with everything large enough to be no trifle, with a record beside every value."""
    values = (0, *(value + 10 for value in problem.value_bytes[1:]))
    saved = tuple(value + 10 + beside for value, beside in zip(values[1:], problem.forward_scratch))
    return replace(problem, value_bytes=values, saved_bytes=saved)


@settings(deadline=None)
@given(chains(most_stages=6))
def test_a_step_that_is_a_chain_is_seen_as_that_chain(problem: Chain) -> None:
    """Every time, value, record and gradient handed on; a^L is not handed on, and δ^L is made in the first block."""
    assume(problem.stages)
    problem = weighty(problem)
    line = Line.of(Step.of(as_program(problem)), settled(Step.of(as_program(problem))), 100)
    found = line.chain()
    assert found.forward_ns == problem.forward_ns
    assert found.backward_ns == problem.backward_ns
    assert found.value_bytes == (*problem.value_bytes[:-1], 0)
    assert found.saved_bytes == problem.saved_bytes
    assert found.grad_bytes[1:-1] == problem.grad_bytes[1:-1]
    # Swept over, a stage holds what it records beside what it hands on; the last one hands nothing on.
    beside = [saved - value for saved, value in zip(found.saved_bytes, found.value_bytes[1:])]
    assert found.forward_scratch == tuple(map(sum, zip(problem.forward_scratch, beside)))
    assert found.backward_scratch[1:-1] == problem.backward_scratch[1:-1]


@settings(max_examples=200, deadline=None)
@given(chains(most_stages=6), st.floats(0, 1))
def test_on_a_chain_rotor_keeps_what_its_model_promises(problem: Chain, share: float) -> None:
    """The time to the nanosecond, a peak not above the promise, and a plan no slower than rotor's own of the chain."""
    assume(problem.stages)
    problem = replace(weighty(problem), loss_scratch=0, grad_bytes=(0,) * (problem.stages + 1))
    program = as_program(problem)
    line = Line.of(Step.of(program), settled(Step.of(program)), 100)
    for plan in rotor.plans(line.chain(), slots=1000, most=20):
        outcome = referee.run(program, line.expand(plan.runs))
        assert (outcome.time, outcome.peak <= plan.peak) == (plan.time, True)
    plain = referee.run(program, range(len(program.ops))).peak
    budget = int(plain * share)
    try:
        bare = rotor.solve(line.chain(), budget)
    except BudgetTooSmall:
        return
    found = rotor_program.solve(program, budget)
    assert found.peak <= budget
    assert found.reckoned is not None
    assert found.reckoned.time == found.time
    assert found.time <= bare.time


@settings(max_examples=150, deadline=None)
@given(st.one_of(programs(8, 8), mirrored(6)), st.integers(1, 6), st.data())
def test_any_runs_of_stages_are_valid_runs_of_ops(program: Program, most: int, data: st.DataObject) -> None:
    """For plans of rotor and of the exact search, which drops and runs again at will."""
    step = Step.of(program)
    for line in Line.both(step, most):
        assert line.cuts[0] == 0
        assert line.cuts[-1] == step.boundary
        assert line.blocks[0] == len(program.ops)
        assert line.blocks[-1] == step.boundary
        assert list(line.blocks) == sorted(line.blocks, reverse=True)
        assert line.stages <= most
        problem = line.chain()
        least = exact_chain.solve(problem, None).peak
        for budget in (None, data.draw(st.integers(0, least))):
            for solve in (rotor.solve, exact_chain.solve):
                try:
                    runs = solve(problem, budget).runs
                except BudgetTooSmall:
                    continue
                outcome = referee.run(program, line.expand([word for word in runs if not word.startswith("drop")]))
                assert min(outcome.counts) >= 1


def skips(spans: list[tuple[int, int]], layers: int) -> Program:
    """A chain of equal layers, in which layer j also reads what layer i made, for each (i, j)."""
    program = equal_layers(layers)
    reads = {j: tuple(i for i, k in spans if k == j) for j in range(layers)}
    ops = tuple(
        replace(op, reads=(*op.reads, *reads[n])) if op.phase is FORWARD else op for n, op in enumerate(program.ops)
    )
    return Program(program.values, ops)


def test_stages_lie_between_the_places_where_one_value_crosses() -> None:
    """Before op p, a(p-1) crosses, and from op 2 to op 5 a1 does as well."""
    step = Step.of(skips([(1, 5)], 8))
    line = Line.of(step, settled(step), 100)
    assert line.cuts == (0, 1, 2, 6, 7, 8)
    assert line.passed == (NOTHING, 0, 1, 5, 6, NOTHING)
    # Ops 8 to 15 undo layers 7 to 0; b7 reads a7 and a6, which is of stage 5; b2 reads a2 of stage 3.
    assert line.blocks == (16, 15, 14, 10, 9, 8)
    assert line.chain().forward_ns == (1, 1, 4, 1, 1)
    assert line.chain().saved_bytes == (10, 10, 40, 10, 10)


def test_a_value_that_crosses_twice_is_handed_on_once() -> None:
    """Layer 4 reads a1 alone, and nothing reads a3: a1 crosses alone before ops 2 and 4."""
    program = equal_layers(8)
    ops = list(program.ops)
    ops[4] = replace(ops[4], reads=(1,))
    step = Step.of(Program(program.values, tuple(ops)))
    line = Line.of(step, settled(step), 100)
    assert line.cuts == (0, 1, 2, 5, 6, 7, 8)
    assert line.passed == (NOTHING, 0, 1, 4, 5, 6, NOTHING)


def test_what_a_late_op_reads_stays_once_its_stage_is_undone() -> None:
    """The last op of all also reads a6, which stage 7 makes. Made again for that stage, it is not made once more."""
    program = equal_layers(8)
    ops = [*program.ops, Op("in time", BACKWARD, (0,), ()), Op("late", BACKWARD, (6,), ())]
    step = Step.of(Program(program.values, tuple(ops)))
    line = Line.of(step, settled(step), 100)
    assert line.blocks == (18, 15, 14, 13, 12, 11, 10, 9, 8)
    words = [*(f"F_ck {l}" for l in range(1, 8)), "F_all 8", "loss", "B 8", "F_all 7", "B 7"]
    for l in range(6, 0, -1):
        words += [f"F_all {l}", f"B {l}"]
    backward = (8, 6, 9, 5, 10, 4, 11, 3, 12, 2, 13, 1, 14, 0, 15, 16, 17)
    assert line.expand(words) == (*range(8), *backward)


def test_a_step_without_a_narrow_place_is_one_stage() -> None:
    step = Step.of(skips([(0, 3), (1, 7), (2, 7), (0, 7)], 8))
    assert Line.of(step, settled(step), 100).cuts == (0, 1, 8)
    step = Step.of(skips([], 8))
    assert Line.of(step, settled(step), 1).cuts == (0, 8)
    assert rotor_program.solve(step.program, 90).reruns == 0


def test_far_reaching_values_are_kept_where_that_makes_stages() -> None:
    """a0 is read by layer 11 of 12: kept, it hides no narrow place."""
    near, far = Line.both(Step.of(skips([(0, 11)], 12)), 100)
    assert (near.stages, far.stages) == (2, 11)
    assert [v for v, kept in enumerate(far.settled) if kept] == [0]
    assert len(Line.both(Step.of(equal_layers(9)), 100)) == 1
    # A quarter of the way is not far.
    assert len(Line.both(Step.of(skips([(0, 3)], 12)), 100)) == 1
    assert Line.both(Step.of(skips([(0, 4)], 12)), 100)[-1].settled[0]


def test_trifles_are_kept_and_tie_nothing_together() -> None:
    """A value of 1 byte of 1201, read by every layer, leaves a chain of 12 stages."""
    program = equal_layers(12, 100)
    number = len(program.values)
    mask = Op("mask", FORWARD, (), (number,))
    ops = tuple(replace(op, reads=(*op.reads, number)) for op in program.ops)
    step = Step.of(Program((*program.values, Value("mask", 1, Role.ACTIVATION)), (mask, *ops)))
    assert Line.of(step, settled(step), 100).stages == 12
    assert [v for v, kept in enumerate(settled(step)) if kept] == [number]
    assert len(Graph.of(step).ops) == 12


def test_more_narrow_places_than_stages_wanted_are_thinned_evenly() -> None:
    step = Step.of(equal_layers(40))
    line = Line.of(step, settled(step), 4)
    lengths = [after - before for before, after in zip(line.cuts, line.cuts[1:])]
    assert len(lengths) == 4
    assert min(lengths) >= 5


def test_what_backward_reads_out_of_turn_costs_no_run_of_its_own() -> None:
    """b0 here stands before b3: its reads are made for it, and the fit moves one op and not the other three."""
    program = equal_layers(4)
    ops = list(program.ops)
    ops[4] = replace(ops[4], reads=(0,), name="early")
    step = Step.of(Program(program.values, tuple(ops)))
    line = Line.of(step, settled(step), 100)
    assert line.blocks == (8, 7, 6, 4, 4)
    runs = line.expand(rotor.solve(line.chain(), None).runs)
    assert runs == tuple(range(8))


GRAPHS = dags.graphs(7).map(lambda graph: replace(graph, bytes=tuple(size + 1 for size in graph.bytes)))


@given(GRAPHS)
def test_a_step_that_is_a_dag_is_seen_as_that_dag(graph: dags.Graph) -> None:
    found = Graph.of(Step.of(dags.program(graph))).dag
    assert found == Dag(graph.bytes, graph.ns, tuple(sorted(graph.edges, key=lambda edge: edge[::-1])))


def test_what_backward_wants_only_to_make_another_is_a_node() -> None:
    """Backward reads y, which is made from x; nothing wants z."""
    values = [Value(name, 8, Role.ACTIVATION) for name in "xyz"]
    ops = (
        Op("x", FORWARD, (), (0,), 1),
        Op("y", FORWARD, (0,), (1,), 2),
        Op("z", FORWARD, (1,), (2,), 4),
        Op("b", BACKWARD, (1,), (), 8),
    )
    graph = Graph.of(Step.of(Program(tuple(values), ops)))
    assert graph.ops == (0, 1)
    assert graph.dag == Dag((8, 8), (1, 2), ((0, 1),))


@settings(max_examples=100, deadline=None)
@given(GRAPHS)
def test_on_a_dag_strategies_cost_what_the_formulas_say_or_less(graph: dags.Graph) -> None:
    """Extra time is T but for values of which backward needs no second copy; formulas agree with the paper's words."""
    program = dags.program(graph)
    view = Graph.of(Step.of(program))
    assert view.dag is not None
    plain = sum(graph.ns)
    for cuts in lower_sets.plans(view.dag, sets=50, budgets=4):
        outcome = referee.run(program, view.expand(cuts.kept))
        assert outcome.time <= plain + cuts.time
        assert cuts.time == sum(graph.ns[v] for v in graph.values - cuts.kept)
    for storage in storages(view.closed(), bounds=6):
        kept = [v - 1 for v in storage.stored]
        edges = [(u + 1, v + 1) for u, v in graph.edges]
        last = len(graph.bytes) + 1
        edges += [(0, v + 1) for v in graph.values if not graph.before(frozenset([v]))]
        edges += [(v + 1, last) for v in graph.values if not graph.after(frozenset([v]))]
        closed = dags.Graph((0, *graph.bytes, 0), (0, *graph.ns, 0), tuple(edges))
        assert storage.cost == dags.stored_cost(closed, frozenset(storage.stored))
        assert referee.run(program, view.expand(kept)).time <= plain + sum(
            graph.ns[v] for v in graph.values if v not in kept
        )


@settings(max_examples=60, deadline=None)
@given(GRAPHS)
def test_plans_of_a_dag_reach_the_ends_of_their_range(graph: dags.Graph) -> None:
    """Of lower sets, the least peak of the family; of closed sets, everything and the least cost."""
    dag = Dag(graph.bytes, graph.ns, graph.edges)
    found = lower_sets.plans(dag, sets=50, budgets=4)
    best = lower_sets.solve(dag, None, family=lower_sets.Family.PRUNED)
    assert min(cuts.peak for cuts in found) <= best.peak
    if len(graph.bytes) < 6:
        sequences = [dags.formula(graph, sequence) for sequence in dags.sequences(graph, dags.lower_sets(graph))]
        assert {(cuts.time, cuts.peak) for cuts in found} <= set(sequences)


def test_the_menu_is_chosen_from_by_what_plans_truly_need() -> None:
    """Three sequences of four layers of 10 bytes, whatever the method says of them; the plain step needs 50."""
    program = equal_layers(4)
    rebuilt = [(0, 1, 2, 3, 4, 5, 6, 7), (0, 1, 2, 3, 2, 3, 4, 5, 0, 6, 7), (0, 1, 2, 3, 4, 0, 5, 6, 7)]
    peaks = [referee.run(program, runs).peak for runs in rebuilt]
    assert peaks == [50, 40, 50]
    candidates = [Candidate(runs, replace(RECKONED, peak=peak)) for runs, peak in zip(rebuilt, accumulate([1] * 3))]

    def plan(budget: int) -> Plan:
        return fastest(program, budget, candidates, planner="some", searched="three")

    assert plan(50).runs == rebuilt[0]
    assert plan(49).runs == plan(40).runs == rebuilt[1]
    assert plan(40).reckoned == replace(RECKONED, peak=2)
    with pytest.raises(BudgetTooSmall) as caught:
        plan(39)
    assert caught.value.needed == 40


RECKONED = rotor_program.Reckoned(0, 0, "everything")


@pytest.mark.parametrize("planner", [closed_sets_program, lower_sets_program, min_peak_program, rotor_program])
def test_the_summary_sets_the_promise_beside_what_the_referee_saw(planner: object) -> None:
    program = equal_layers(9, 2**20)
    plan = planner.solve(program, 7 * 2**20)  # type: ignore[attr-defined]
    outcome = referee.run(program, plan.runs)
    assert (plan.peak, plan.time) == (outcome.peak, outcome.time)
    lines = plan.summary().splitlines()
    assert lines[-2].startswith("promised  ")
    assert plan.reckoned.ignores in lines[-2]
    assert lines[-1] == f"refereed  {outcome.peak / 2**20:.2f} MiB in the step and 0.000 ms"


def test_golden_plans_of_nine_equal_layers() -> None:
    """In 60 bytes, of the plain step's 100. rotor does whole stages, so it runs layer 5 again, which min_peak has kept;
    min_peak by its objective `sum` and closed_sets do not see gradients.
    """
    planners = {p.NAME: p for p in (rotor_program, min_peak_program, lower_sets_program, closed_sets_program)}
    plans = {name: planner.solve(equal_layers(9), 60) for name, planner in planners.items()}
    forward = tuple(range(9))
    assert {name: plan.runs for name, plan in plans.items()} == {
        "rotor": (*forward, 9, 10, 11, 3, 4, 5, 12, 13, 14, 0, 1, 2, 15, 16, 17),
        "min_peak": (*forward, 9, 10, 11, 3, 4, 12, 13, 14, 0, 1, 15, 16, 17),
        "lower_sets": (*forward, 9, 10, 5, 11, 12, 3, 13, 14, 0, 1, 15, 16, 17),
        "closed_sets": (*forward, 6, 7, 9, 10, 11, 3, 4, 12, 13, 14, 0, 1, 15, 16, 17),
    }
    promised = {name: (plan.reckoned.peak, plan.reckoned.time) for name, plan in plans.items() if plan.reckoned}
    assert promised == {"rotor": (60, 33), "min_peak": (30, 33), "lower_sets": (70, 33), "closed_sets": (50, 33)}
    assert {(plan.peak, plan.time) for plan in plans.values()} == {(60, 33), (60, 31)}
