"""`lowtide solve`: lines in, lines out, and what a user who gets a line wrong is told."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import Any

import pytest

from lowtide import cli, referee, solve
from lowtide.planners.registry import PLANNERS
from tests.oracles import chains as enumerated
from tests.planners.drawn import equal_chain
from tests.planners.test_planners import chain as a_chain

ONES = {"bytes": [1] * 12}
DAG = {"bytes": [4, 2, 1], "ns": [1, 2, 3], "edges": [[0, 1], [1, 2]]}
STEP: dict[str, Any] = {
    "values": [{"name": "x", "bytes": 4, "role": "activation"}],
    "ops": [
        {"name": "f", "phase": "forward", "reads": [], "writes": [0]},
        {"name": "b", "phase": "backward", "reads": [0], "writes": []},
    ],
}
FIVE = {"forward_ns": [1] * 5, "backward_ns": [2] * 5, "value_bytes": [1] * 6, "saved_bytes": [2] * 5}


def answers(method: str, *lines: object) -> tuple[int, list[Any], str]:
    """Exit code, answers and complaints; a line that is not bytes is written as JSON."""
    written = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    out, complaints = io.StringIO(), io.StringIO()
    code = solve.run(method, [line + b"\n" for line in written], out, complaints)
    return code, [json.loads(line) for line in out.getvalue().splitlines()], complaints.getvalue()


def answer(method: str, problem: object, budget: object = None, **options: object) -> Any:
    _, (only,), _ = answers(method, {"problem": problem, "budget": budget, **options})
    return only


def test_min_peak() -> None:
    assert answer("min_peak", ONES) == {"feasible": True, "peak": 8, "checkpoints": [0, 5, 8, 10, 11]}
    assert answer("min_peak", ONES, 8, objective="torch")["feasible"]
    assert answer("min_peak", ONES, 7) == {"feasible": False, "needed": 8}
    assert answer("min_peak", ONES, 5, objective="sum")["checkpoints"] == [0, 3, 6, 9, 11]


@pytest.mark.parametrize(("method", "time"), [("rotor", 19), ("exact", 18)])
def test_chains(method: str, time: int) -> None:
    found = answer(method, FIVE, 8)
    assert (found["feasible"], found["time"], found["peak"], found["optimal"]) == (True, time, 8, True)
    assert enumerated.replay(equal_chain(5), found["runs"]) == (time, 8)
    assert answer(method, FIVE)["time"] == 15
    assert answer(method, FIVE, 5) == {"feasible": False, "needed": 6}


def test_slots_thin_the_grid() -> None:
    assert not answer("rotor", FIVE, 10, slots=2)["optimal"]
    assert answer("rotor", FIVE, 10, slots=None)["optimal"]


def test_a_budget_of_nothing_is_a_budget() -> None:
    """It does not fit, unless nothing has any bytes."""
    assert answer("rotor", FIVE, 0) == {"feasible": False, "needed": 6}
    free = {"forward_ns": [3], "backward_ns": [4], "value_bytes": [0, 0], "saved_bytes": [0]}
    assert answer("exact", free, 0)["time"] == 7
    assert answer("min_peak", {"bytes": [0, 0]}, 0)["peak"] == 0


def test_dags_worked_by_hand() -> None:
    """The chain 4 → 2 → 1. In one block the formula counts 2 * 7, and all 6 ns again. With the blocks {0}, {1}, {2} it
    counts 2 * 4 + 2 ahead, then 4 kept + 2 * 2 + 1 ahead, then 6 kept + 2 * 1, and only value 2's 3 ns again. Between
    the ends lies value 1 alone, stored or in a piece.

    The step itself: fwd 0 | 4, fwd 1 | 6, fwd 2 | 7, bwd 2 reads value 2 | 4 + 2 + 1 + 1 = 8, bwd 1 | reads gradient 2
    and value 1, writes 2: 4 + 2 + 1 + 2 = 9, bwd 0 | value 0, gradients 1 and 0: 4 + 2 + 4 = 10.
    """
    blocks = {"sequence": [[0], [0, 1], [0, 1, 2]], "liveness_peak": 10}
    assert answer("lower_sets", DAG, None) == {"feasible": True, "time": 3, "peak": 10, **blocks}
    assert answer("lower_sets", DAG, 14, prefer="memory")["time"] == 6
    assert answer("lower_sets", DAG, 14, prefer="time", family="pruned")["time"] == 3
    assert answer("lower_sets", DAG, 9) == {"feasible": False, "needed": 10}
    assert answer("closed_sets", DAG, None) == {"feasible": True, "cost": 2, "stored": [1]}
    assert answer("closed_sets", DAG, 1) == {"feasible": False, "needed": 2}
    assert answer("exact", DAG, None) == {"feasible": True, "time": 0, "peak": 10}
    assert answer("exact", DAG, 9) == {"feasible": False, "needed": 10}


@pytest.mark.parametrize("method", ["lower_sets", "closed_sets", "exact"])
def test_any_budget_and_any_dag(method: str) -> None:
    """None, one value, and more bytes than fit in 64 bits."""
    assert answer(method, DAG, 10**30)["feasible"]
    assert not answer(method, DAG, 0)["feasible"]
    one = answer(method, {"bytes": [3], "ns": [2], "edges": []}, None)
    assert one.get("peak", 6) == 6
    assert one["feasible"]


def test_without_a_budget_lower_sets_has_the_least_peak_and_exact_no_limit() -> None:
    """Five equal values in a row: nothing needs to run again in 6 bytes; lower_sets has its least peak, 5."""
    row = {"bytes": [1] * 5, "ns": [1] * 5, "edges": [[v, v + 1] for v in range(4)]}
    found = answer("exact", row, None)
    assert (found["time"], found["peak"]) == (0, 6)
    assert answer("exact", row, 5)["time"] == 1
    assert answer("lower_sets", row, None)["peak"] == 5


def test_every_planner_answers_on_a_program() -> None:
    """In both forms of a Program; the answer is what the referee sees, and no faster than anything can be."""
    step = a_chain(9)
    for method, planner in PLANNERS.items():
        free = answer(method, str(step))
        assert answer(method, step.to_json()) == free
        assert (free["time"], free["overhead"], free["bound"], free["optimal"]) == (27, 0, 27, True), method
        tight = answer(method, step.to_json(), 99)
        if method == "keep_all":
            assert tight == {"feasible": False, "needed": 100}
            continue
        outcome = referee.run(step, tight["runs"])
        assert (outcome.time, outcome.peak) == (tight["time"], tight["peak"]), method
        assert outcome.peak <= 99
        assert tight["time"] == 27 + tight["overhead"] == planner(step, 99).time
        assert tight["bound"] <= 28 <= tight["time"], method
        assert tight["optimal"] is (tight["bound"] == tight["time"])


def test_the_budget_that_a_program_needs() -> None:
    refused = answer("sqrt", str(a_chain(9)), 0)
    assert answer("sqrt", str(a_chain(9)), refused["needed"])["peak"] == refused["needed"]
    assert answer("sqrt", str(a_chain(9)), refused["needed"] - 1) == refused
    assert answer("sqrt", {"values": [], "ops": []}, 0) == {
        "feasible": True, "time": 0, "peak": 0, "overhead": 0, "bound": 0, "optimal": True, "runs": []
    }  # fmt: skip


def test_malformed_lines_are_named_and_the_others_solved_in_order() -> None:
    good = {"problem": ONES, "budget": None}
    code, found, complaints = answers("min_peak", good, b"{", good, {"problem": {}, "budget": 1}, b"  ", good)
    assert code == 1
    assert [one.get("peak") for one in found] == [8, None, 8, None, 8]
    assert found[1]["error"].startswith("line 2: not JSON: ")
    assert found[3]["error"] == "line 4: problem.bytes: missing"
    assert complaints == ""


def test_numbers_beyond_64_bits_are_numbers() -> None:
    """Where a method reckons in integers; dags and programs say that they do not."""
    many = {name: [number * 10**19 for number in numbers] for name, numbers in FIVE.items()}
    for method, time in (("rotor", 19), ("exact", 18)):
        found = answer(method, many, 8 * 10**19)
        assert (found["time"], found["peak"]) == (time * 10**19, 8 * 10**19)
    assert answer("min_peak", {"bytes": [10**19] * 12})["peak"] == 8 * 10**19


def test_what_a_papers_method_promised_of_a_program() -> None:
    """Nine equal layers in 60 bytes; closed_sets counts no gradients."""
    step = a_chain(9).to_json()
    found = answer("closed_sets", step, 60)
    assert (found["time"], found["peak"], found["promised"]) == (33, 60, {"time": 33, "peak": 50})
    assert "promised" not in answer("sqrt", step, 60)


def test_infeasible_is_not_malformed() -> None:
    assert answers("min_peak", {"problem": ONES, "budget": 0})[0] == 0


@pytest.mark.parametrize(
    ("method", "line", "error"),
    [
        ("rotor", [], "[] is not an object with the fields problem and budget"),
        ("rotor", {"budget": 1}, "problem: missing"),
        ("rotor", {"problem": FIVE}, "budget: missing (null for no limit)"),
        ("rotor", {"problem": FIVE, "budget": -1}, "budget: -1 is not a whole number of bytes >= 0, nor null"),
        ("rotor", {"problem": FIVE, "budget": 8.0}, "budget: 8.0 is not a whole number of bytes >= 0, nor null"),
        ("rotor", {"problem": FIVE, "budget": "8"}, 'budget: "8" is not a whole number of bytes >= 0, nor null'),
        ("rotor", {"problem": FIVE, "budget": True}, "budget: true is not a whole number of bytes >= 0, nor null"),
        ("rotor", {"problem": None, "budget": 8}, "problem: null is not an object with fields"),
        ("rotor", {"problem": [7], "budget": 8}, "problem: [7] is not an object with fields"),
        ("rotor", {"problem": {}, "budget": 8}, "problem.forward_ns: missing"),
        ("rotor", {"problem": {"saved_bytes": []}, "budget": 8}, "problem.forward_ns: missing"),
        ("rotor", {"problem": FIVE | {"forward_ns": [1]}, "budget": 8}, "problem.backward_ns: length 5, not 1"),
        ("rotor", {"problem": FIVE | {"saved_bytes": [2, 2, 2, 2, -2]}, "budget": 8},
         "problem.saved_bytes: entry 4 is -2, not a whole number >= 0"),
        ("rotor", {"problem": FIVE | {"loss_scratch": None}, "budget": 8},
         "problem.loss_scratch: null is not a whole number >= 0"),
        ("rotor", {"problem": FIVE, "budget": 8, "slots": 0}, "slots: 0 is not a whole number >= 1, nor null"),
        ("rotor", {"problem": FIVE, "budget": 8, "colour": 1},
         "colour: rotor has no such option for this problem (known: slots)"),
        ("exact", {"problem": FIVE, "budget": 8, "slots": 5},
         "slots: exact has no such option for this problem (known: none)"),
        ("closed_sets", {"problem": FIVE, "budget": 8},
         "problem: closed_sets solves dag problems (bytes, ...) and program problems (values, ...), "
         "and this is a chain problem"),
        ("min_peak", {"problem": FIVE, "budget": 8},
         "problem: min_peak solves sizes problems (bytes, ...) and program problems (values, ...), "
         "and this is a chain problem"),
        ("priced", {"problem": ONES, "budget": 8},
         "problem: priced solves program problems (values, ...), and this is a sizes problem"),
        ("min_peak", {"problem": ONES | {"colour": 1}, "budget": 8},
         "problem.colour: there is no such field (known: bytes)"),
        ("min_peak", {"problem": {"bytes": []}, "budget": 8}, "problem.bytes: there must be at least one layer"),
        ("min_peak", {"problem": ONES, "budget": 8, "objective": "least"},
         'objective: "least" is not one of sum, activations, paper, torch, reentrant'),
        ("lower_sets", {"problem": DAG | {"edges": [[0, 1], [2, 1]]}, "budget": 8},
         "problem.edges: entry 1 is [2, 1], which does not go from a lower number to a higher one"),
        ("lower_sets", {"problem": {"bytes": [1]}, "budget": 8}, "problem.ns: missing"),
        ("lower_sets", {"problem": DAG | {"forward_ns": []}, "budget": 8},
         "problem.forward_ns: there is no such field (known: bytes, ns, edges)"),
        ("lower_sets", {"problem": DAG, "budget": 8, "family": "all"}, 'family: "all" is not one of exact, pruned'),
        ("lower_sets", {"problem": DAG, "budget": 8, "prefer": None}, "prefer: null is not one of time, memory"),
        ("lower_sets", {"problem": DAG, "budget": 8, "prefer": [1]}, "prefer: [1] is not one of time, memory"),
        ("lower_sets", {"problem": DAG, "budget": 8, "slots": 3},
         "slots: lower_sets has no such option for this problem (known: family, prefer)"),
        ("closed_sets", {"problem": DAG, "budget": 8, "family": "exact"},
         "family: closed_sets has no such option for this problem (known: none)"),
        ("closed_sets", {"problem": DAG | {"edges": [[0, 1]]}, "budget": 8},
         "problem.edges: must leave one source and one target, found 2 sources: 0, 2"),
        ("exact", {"problem": DAG, "budget": 8, "prefer": "time"},
         "prefer: exact has no such option for this problem (known: none)"),
        ("priced", {"problem": {"values": []}, "budget": 8}, "problem.ops: missing"),
        ("priced", {"problem": STEP | {"colour": 1}, "budget": 8},
         "problem.colour: there is no such field (known: values, ops)"),
        ("priced", {"problem": STEP | {"ops": 1}, "budget": 8}, "problem: ops is 1, not a list"),
        ("priced", {"problem": STEP | {"values": [{"name": "x", "bytes": -1, "role": "activation"}]}, "budget": 8},
         "problem: value 0 (x): bytes is -1, not a whole number >= 0"),
        ("priced", {"problem": STEP | {"values": [{"name": "x", "role": "activation"}]}, "budget": 8},
         "problem: values[0]: the field 'bytes' is missing"),
        ("priced", {"problem": STEP | {"values": [{"name": "x", "bytes": 2**53, "role": "activation"}]}, "budget": 8},
         f"problem: bytes adds up to {2**53}, more than {2**53 - 1}"),
        ("priced", {"problem": STEP | {"ops": STEP["ops"][::-1]}, "budget": 8},
         "problem: op 0 (b): reads value 0 (x) before it is made"),
        ("priced", {"problem": "lowtide", "budget": 8},
         "problem: the first line of a program must be 'lowtide program 1'"),
        ("priced", {"problem": "lowtide program 1\nvalue 0 activation", "budget": 8},
         "problem: line 2: expected 'value|op NUMBER KIND field=...', found 'value 0 activation'"),
        ("priced", {"problem": STEP, "budget": 8, "slots": 3},
         "slots: priced has no such option for this problem (known: none)"),
        ("min_peak", {"problem": {"bytes": [1, 1.0]}, "budget": 8},
         "problem.bytes: entry 1 is 1.0, not a whole number >= 0"),
        ("min_peak", {"problem": {"bytes": [[1]]}, "budget": 8},
         "problem.bytes: entry 0 is [1], not a whole number >= 0"),
        ("min_peak", {"problem": {"bytes": "11"}, "budget": 8}, 'problem.bytes: "11" is not a list of whole numbers'),
        ("min_peak", {"problem": ONES | {"x" * 1000: 1}, "budget": 8},
         f"problem.{'x' * 40}...: there is no such field (known: bytes)"),
        ("rotor", {"problem": {name: [] for name in FIVE}, "budget": 8}, "problem.value_bytes: length 0, not 1"),
        ("rotor", {"problem": FIVE, "budget": 8, "slots": True}, "slots: true is not a whole number >= 1, nor null"),
        ("rotor", {"problem": DAG, "budget": 8},
         "problem: rotor solves chain problems (forward_ns, ...) and program problems (values, ...), "
         "and this is a dag problem"),
        ("lower_sets", {"problem": {"bytes": [], "ns": [], "edges": []}, "budget": 8},
         "problem.bytes: there must be at least one value"),
        ("lower_sets", {"problem": DAG | {"edges": [[0, 1], [0, 1]]}, "budget": 8},
         "problem.edges: entry 1 is [0, 1], which is there twice"),
        ("lower_sets", {"problem": DAG | {"edges": [[1, 1]]}, "budget": 8},
         "problem.edges: entry 0 is [1, 1], which does not go from a lower number to a higher one"),
        ("lower_sets", {"problem": DAG | {"edges": [[0, 3]]}, "budget": 8},
         "problem.edges: entry 0 is [0, 3], and the values are 0 to 2"),
        ("lower_sets", {"problem": DAG | {"edges": [[0, True]]}, "budget": 8},
         "problem.edges: entry 0 is [0, true], not a pair of whole numbers"),
        ("lower_sets", {"problem": DAG | {"edges": [[0, 1, 2]]}, "budget": 8},
         "problem.edges: entry 0 is [0, 1, 2], not a pair [u, v]"),
        ("lower_sets", {"problem": DAG | {"edges": {}}, "budget": 8},
         "problem.edges: {} is not a list of pairs [u, v]"),
        ("lower_sets", {"problem": DAG | {"bytes": [2**63, 1, 1]}, "budget": 8},
         f"problem.bytes: adds up to {2**63 + 2}, more than {2**53 - 1}"),
        ("lower_sets", {"problem": {"bytes": [1] * 30, "ns": [1] * 30, "edges": []}, "budget": 8},
         "family: the dag has more than 20000 lower sets, too many to try all; ask for 'pruned'"),
        ("exact", {"problem": {"bytes": [1] * 9, "ns": [1] * 9, "edges": []}, "budget": 8},
         "problem.bytes: exact takes dags of at most 8 values, found 9"),
        ("exact", {"problem": a_chain(31).to_json(), "budget": 8},
         "problem.ops: exact takes steps of at most 60 ops, and this one has 62; ask another planner, such as 'best'"),
        ("priced", {"problem": STEP | {"values": [{"name": "x", "bytes": True, "role": "activation"}]}, "budget": 8},
         "problem: values[0]: bytes is True, not a whole number"),
        ("exact", {"problem": equal_chain(13).to_json(), "budget": 8},
         "problem.forward_ns: 13 stages, but the exact search takes at most 12"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_line(method: str, line: object, error: str) -> None:
    assert answers(method, line) == (1, [{"error": f"line 1: {error}"}], "")


@pytest.mark.parametrize(
    ("line", "start"),
    [
        (b"lowtide", "line 1: not JSON: Expecting value"),
        (b'{"problem": {"bytes": [1]}, "budget": NaN}', "line 1: not JSON: NaN is no number"),
        (b'{"problem": {"bytes": [1]}, "budget": 1, "budget": 2}', "line 1: budget: given twice"),
        (b'{"problem": {"bytes": [1], "bytes": [2]}, "budget": 1}', "line 1: bytes: given twice"),
        (b"\xff\xfe", "line 1: not JSON: 'utf-8' codec can't decode"),
        (b'\xef\xbb\xbf{"problem": {"bytes": [1]}, "budget": 1}', "line 1: not JSON: Unexpected UTF-8 BOM"),
        (b'{"problem": {"bytes": [1, -Infinity]}, "budget": 1}', "line 1: not JSON: -Infinity is no number"),
        (b'{"problem": {"bytes": [1e400]}, "budget": 1}', "line 1: problem.bytes: entry 0 is Infinity, not a whole"),
        (b'{"problem": {"bytes": [1]}, "budget": 1} x', "line 1: not JSON: Extra data"),
        (b"[" * 100_000, "line 1: not JSON that can be read: nested too deeply"),
        (b'{"problem": {"bytes": [' + b"9" * 5000 + b"]}}", "line 1: not JSON: Exceeds the limit"),
        (b'{"problem": {"bytes": ["' + b"x" * 500 + b'"]}, "budget": 1}', 'line 1: problem.bytes: entry 0 is "xxxx'),
    ],
)
def test_lines_from_a_hostile_user(line: bytes, start: str) -> None:
    code, (only,), _ = answers("min_peak", line)
    assert code == 1
    assert only["error"].startswith(start)
    assert len(only["error"]) < 200


def test_an_unknown_method_is_one_line_that_names_them_all() -> None:
    code, found, complaints = answers("rotorr", {"problem": FIVE, "budget": 8})
    assert (code, found) == (1, [])
    assert complaints == f"lowtide solve: there is no method 'rotorr' (known: {', '.join(solve.methods())})\n"
    assert {"exact", "min_peak", "rotor"} <= set(solve.methods())


def test_no_input_is_a_mistake() -> None:
    code, found, complaints = answers("rotor", b"")
    assert (code, found) == (1, [])
    assert complaints.count("\n") == 1
    assert "no problem on standard input" in complaints


def test_answers_come_as_lines_are_read() -> None:
    """The second line is asked for only when the first is answered and flushed."""
    flushed: list[str] = []

    class Watched(io.StringIO):
        def flush(self) -> None:
            flushed.append(self.getvalue())

    def lines() -> Any:
        yield json.dumps({"problem": ONES, "budget": None}).encode()
        assert flushed
        assert flushed[-1].endswith("]}\n")
        yield b"x"

    assert solve.run("min_peak", lines(), Watched(), io.StringIO()) == 1
    assert len(flushed) == 2


def test_the_command_runs_without_torch() -> None:
    """Started as users start it, with an interpreter that refuses to import torch."""
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from lowtide.cli import main; code = main(['solve', 'rotor'])\n"
        "assert sys.modules['torch'] is None; sys.exit(code)"
    )
    line = json.dumps({"problem": FIVE, "budget": 8}) + "\n"
    done = subprocess.run([sys.executable, "-c", program], input=line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["time"] == 19


def test_the_command_never_imports_torch() -> None:
    program = (
        "import sys\nfrom lowtide.cli import main; main(['solve', 'min_peak'])\n"
        "sys.exit([name for name in sys.modules if name.partition('.')[0] == 'torch'] != [])"
    )
    line = json.dumps({"problem": ONES, "budget": 8}) + "\n"
    done = subprocess.run([sys.executable, "-c", program], input=line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_reader_that_leaves_early_is_no_crash() -> None:
    line = json.dumps({"problem": ONES, "budget": None}) + "\n"
    command = [sys.executable, "-m", "lowtide", "solve", "min_peak"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, complaints = process.communicate((line * 3).encode())
    assert complaints == b""
    assert process.returncode == 1


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("lowtide 0.")
