"""A Program is a file: it prints, parses, and a broken one is refused with the place named."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import InvalidProgram
from lowtide.program import Op, Phase, Program, Role, Value
from oracles.programs import programs

WORDS = st.text(max_size=12) | st.sampled_from(
    ['a "b" c', "two\nlines", "tab\there", "back\\slash", "naïve 変数 🌊", "x=1 y=", "\u2028\x85\x1c", "\r\n", "'", "#"]
)


@st.composite
def labelled(draw: st.DrawFn) -> Program:
    """A program whose names are anything that text can be."""
    program = draw(programs())
    values = tuple(replace(value, name=draw(WORDS)) for value in program.values)
    ops = tuple(
        replace(op, name=draw(WORDS), where=draw(WORDS), once=draw(WORDS) if op.once else "") for op in program.ops
    )
    return Program(values, ops)


@given(labelled())
def test_text_reads_back(program: Program) -> None:
    text = str(program)
    assert Program.parse(text) == program
    assert len(text.splitlines()) == 1 + len(program.values) + len(program.ops)


@given(labelled())
def test_json_reads_back(program: Program) -> None:
    assert Program.from_json(json.loads(json.dumps(program.to_json()))) == program


@given(programs())
def test_costs_and_places_leave_the_fingerprint(program: Program) -> None:
    """And what a plan depends on changes it."""
    costly = Program(program.values, tuple(replace(op, ns=op.ns + 7, where="m.py:1") for op in program.ops))
    assert costly.fingerprint == program.fingerprint
    first = replace(program.values[0], bytes=program.values[0].bytes + 1)
    assert Program((first, *program.values[1:]), program.ops).fingerprint != program.fingerprint
    once = replace(program.ops[0], once="" if program.ops[0].once else "moves on")
    assert Program(program.values, (once, *program.ops[1:])).fingerprint != program.fingerprint


GOOD = """lowtide program 1
value 0 static bytes=8 name="w"
value 1 activation bytes=4 name="a"
value 2 output bytes=4 name="g"
op 0 forward reads=0 writes=1 ns=5 scratch=0 name="mm" where="model.py:3"
op 1 backward reads=0,1 writes=2 ns=5 scratch=1 name="mm_backward" once="because"
"""


def test_the_text_as_it_is() -> None:
    assert str(Program.parse(GOOD)) == GOOD
    assert Program.parse(GOOD).boundary == 1


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("lowtide program 1", "lowtide program 2", ["first line", "lowtide program 1"]),
        ("value 1 activation", "valve 1 activation", ["line 3", "'valve'"]),
        ("value 1 activation", "value 7 activation", ["line 3", "7", "1 comes next"]),
        ("value 1 activation", "value one activation", ["line 3"]),
        ("value 1 activation", "value 1 hidden", ["line 3", "role", "'hidden'", "static, activation"]),
        ("0 forward", "0 sideways", ["line 5", "phase", "'sideways'", "forward, backward"]),
        ("op 0", "op 1", ["line 5", "numbered 1"]),
        ('bytes=4 name="a"', "bytes=4", ["line 3", "'name'", "missing"]),
        ('bytes=4 name="a"', 'name="a"', ["line 3", "'bytes'", "missing"]),
        ('bytes=4 name="a"', 'bytes=4 name="a" size=3', ["line 3", "no field 'size'"]),
        ('bytes=4 name="a"', 'bytes=4.5 name="a"', ["line 3", "bytes=4.5", "whole"]),
        ('bytes=4 name="a"', 'bytes=4 bytes=8 name="a"', ["line 3", "bytes", "twice"]),
        ('bytes=4 name="a"', 'bytes=-4 name="a"', ["value 1 (a)", "bytes is -4"]),
        ('bytes=4 name="a"', 'bytes="4" name="a"', ["line 3", "bytes"]),
        ('bytes=4 name="a"', "bytes=4 name=a", ["line 3", "name=a"]),
        ('bytes=4 name="a"', 'bytes=4 name="a', ["line 3", "name", "quoted"]),
        ('bytes=4 name="a"', "bytes=4 name", ["line 3", "'name' has no value"]),
        ('bytes=4 name="a"', "bytes=4 name=7", ["line 3", "name"]),
        ("reads=0,1", "reads=0;1", ["line 6", "reads=0;1"]),
        ("reads=0,1", 'reads="01"', ["line 6", "reads"]),
        ("reads=0,1", "reads=0,9", ["op 1 (mm_backward)", "no value 9"]),
        ("reads=0,1", "reads=0,0", ["op 1 (mm_backward)", "twice"]),
        ("reads=0,1", "reads=0,2", ["op 1 (mm_backward)", "reads value 2 (g) before it is made"]),
        ("writes=2", "writes=1", ["op 1 (mm_backward)", "value 1 (a) is written by an earlier op"]),
        ("writes=2", "writes=0", ["op 1 (mm_backward)", "value 0 (w) is static"]),
        ("writes=2", "writes=-", ["value 2 (g) is written by no op"]),
        ("0 forward", "0 backward", []),
        ("1 backward", "1 forward", []),
        ("scratch=1", "scratch=-1", ["op 1 (mm_backward)", "scratch"]),
        ("scratch=1", 'scratch="1"', ["line 6", "scratch"]),
        ('once="because"', "once=1", ["line 6", "once"]),
    ],
)
def test_a_broken_text_is_refused_where_it_breaks(old: str, new: str, named: list[str]) -> None:
    broken = GOOD.replace(old, new, 1)
    assert broken != GOOD
    if not named:  # Not every change breaks it.
        assert str(Program.parse(broken)) == broken
        return
    with pytest.raises(InvalidProgram) as error:
        Program.parse(broken)
    assert all(word in str(error.value) for word in named), error.value


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda data: data.pop("ops"), ["'values'", "'ops'"]),
        (lambda data: data["values"].insert(1, 7), ["values[1]", "not an object"]),
        (lambda data: data["values"][1].pop("bytes"), ["values[1]", "'bytes'", "missing"]),
        (lambda data: data["values"][1].update(bytes=True), ["values[1]", "bytes is True"]),
        (lambda data: data["values"][1].update(role=[]), ["values[1]", "role"]),
        (lambda data: data["values"][1].update(name=None), ["values[1]", "name"]),
        (lambda data: data["ops"][1].update(reads=3), ["ops[1]", "reads"]),
        (lambda data: data["ops"][1].update(reads=[0, 1.0]), ["ops[1]", "reads", "1.0"]),
        (lambda data: data["ops"][1].update(reads=[[0]]), ["ops[1]", "reads", "[0]"]),
        (lambda data: data["ops"][1].update(ns=1.5), ["ops[1]", "ns"]),
        (lambda data: data["ops"][1].update(cost=1), ["ops[1]", "no field 'cost'"]),
        (lambda data: data["ops"][1].update(phase="later"), ["ops[1]", "phase", "'later'"]),
        (lambda data: data.update(ops=5), ["ops"]),
    ],
)
def test_a_broken_object_is_refused_where_it_breaks(change: object, named: list[str]) -> None:
    data = Program.parse(GOOD).to_json()
    change(data)  # type: ignore[operator]
    with pytest.raises(InvalidProgram) as error:
        Program.from_json(data)
    assert all(word in str(error.value) for word in named), error.value


def test_forward_comes_before_backward() -> None:
    value = Value("a", 1, Role.ACTIVATION)
    ops = (Op("b", Phase.BACKWARD, (), (0,)), Op("f", Phase.FORWARD, (), ()))
    with pytest.raises(InvalidProgram, match=r"op 1 \(f\): a forward op after a backward op"):
        Program((value,), ops)


@given(programs(), st.data())
def test_any_line_lost_or_cut_is_an_error_of_ours(program: Program, data: st.DataObject) -> None:
    """Never a KeyError or a ValueError of Python's own."""
    text = str(program)
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start, min(len(text), start + 9)))
    with contextlib.suppress(InvalidProgram):
        Program.parse(text[:start] + data.draw(st.text(max_size=3)) + text[end:])


def test_sums_that_arrays_could_not_hold_are_refused() -> None:
    """2**53 bytes in all are the most."""
    values = (Value("x", 2**53, Role.ACTIVATION),)
    assert Program(values, (Op("f", Phase.FORWARD, (), (0,)),)).values == values
    with pytest.raises(InvalidProgram, match="bytes in all"):
        Program(values, (Op("f", Phase.FORWARD, (), (0,), scratch=1),))
    with pytest.raises(InvalidProgram, match="nanoseconds in all"):
        Program((Value("x", 1, Role.ACTIVATION),), (Op("f", Phase.FORWARD, (), (0,), ns=2**53 + 1),))
