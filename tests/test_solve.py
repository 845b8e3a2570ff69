"""`lowtide solve`: lines in, lines out, and what a user who gets a line wrong is told."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import Any

import pytest

from lowtide import cli, solve
from tests.oracles import chains as enumerated
from tests.planners.drawn import equal_chain

ONES = {"bytes": [1] * 12}
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


def test_malformed_lines_are_named_and_the_others_solved_in_order() -> None:
    good = {"problem": ONES, "budget": None}
    code, found, complaints = answers("min_peak", good, b"{", good, {"problem": {}, "budget": 1}, b"  ", good)
    assert code == 1
    assert [one.get("peak") for one in found] == [8, None, 8, None, 8]
    assert found[1]["error"].startswith("line 2: not JSON: ")
    assert found[3]["error"] == "line 4: problem.bytes: missing"
    assert complaints == ""


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
        ("rotor", {"problem": "text", "budget": 8}, 'problem: "text" is not an object with fields'),
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
        ("rotor", {"problem": ONES, "budget": 8},
         "problem.bytes: rotor solves chain problems (forward_ns, ...), and this is a sizes problem"),
        ("min_peak", {"problem": FIVE, "budget": 8},
         "problem.forward_ns: min_peak solves sizes problems (bytes, ...), and this is a chain problem"),
        ("min_peak", {"problem": ONES | {"colour": 1}, "budget": 8},
         "problem.colour: there is no such field (known: bytes)"),
        ("min_peak", {"problem": {"bytes": []}, "budget": 8}, "problem.bytes: there must be at least one layer"),
        ("min_peak", {"problem": ONES, "budget": 8, "objective": "least"},
         'objective: "least" is not one of sum, activations, paper, torch, reentrant'),
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
    assert (code, found) == (2, [])
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
        "import sys; sys.modules['torch'] = None; sys.modules['numba'] = None\n"
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
