"""The nouns Value, Op and Program: one training step as a list of operator calls over pieces of storage.

A Program is a file: `str(program)` prints one fact a line and `Program.parse` reads it back to an equal Program;
`to_json` and `from_json` do the same with JSON. No torch is needed for any of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from lowtide.errors import InvalidProgram

HEADER = "lowtide program 1"
MOST = 2**53
E = TypeVar("E", bound=Enum)


class Role(Enum):
    """What a value is to the step, and so how long it lives and whether it counts.

    STATIC       parameters, buffers, the batch: alive all along, not in the timeline
    ACTIVATION   made in forward, alive from the run that writes it to its last read
    GRADIENT     made in backward, alive likewise
    OUTPUT       handed to the caller (model outputs, parameter gradients): its first copy lives to the end
    """

    STATIC = "static"
    ACTIVATION = "activation"
    GRADIENT = "gradient"
    OUTPUT = "output"


class Phase(Enum):
    """The half of the step an op belongs to in PyTorch's own order."""

    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True, slots=True)
class Value:
    """One piece of storage; every view of it is the same value.

    name    for people; need not be unique
    bytes   what the storage holds, >= 0; rounded up to the allocator's unit where the device has one
    role    see Role
    """

    name: str
    bytes: int
    role: Role


@dataclass(frozen=True, slots=True)
class Op:
    """One operator call.

    name      the operator, for people
    phase     see Phase
    reads     numbers of the values it needs, each once
    writes    numbers of the values it makes, each once; no other op makes them
    ns        time of one run, nanoseconds >= 0
    scratch   bytes it needs while it runs beyond what it reads and writes, >= 0
    once      why it must run exactly once; empty for an op that may be run again
    where     module and source line, for people; may be empty
    """

    name: str
    phase: Phase
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    ns: int = 0
    scratch: int = 0
    once: str = ""
    where: str = ""

    @property
    def rerunnable(self) -> bool:
        """Whether the op gives the same values again when it is run again."""
        return not self.once


@dataclass(frozen=True, slots=True)
class Arrays:
    """A Program as flat arrays, for code that must be fast. Slices are compressed rows: op i reads
    `reads[reads_start[i]:reads_start[i + 1]]`. Static values are left out of `reads`.
    """

    bytes: NDArray[np.int64]
    static: NDArray[np.bool_]
    output: NDArray[np.bool_]
    ns: NDArray[np.int64]
    scratch: NDArray[np.int64]
    once: NDArray[np.bool_]
    reads_start: NDArray[np.int64]
    reads: NDArray[np.int64]
    writes_start: NDArray[np.int64]
    writes: NDArray[np.int64]
    writer: NDArray[np.int64]


@dataclass(frozen=True)
class Program:
    """The ops of one training step in the order in which PyTorch runs them, forward then backward, and the values.

    values   numbered by position
    ops      numbered by position; every value that is not static is written by exactly one of them, before it is read
    """

    values: tuple[Value, ...]
    ops: tuple[Op, ...]

    def __post_init__(self) -> None:
        _check(self)

    @property
    def boundary(self) -> int:
        """Number of the first backward op; `len(ops)` where there is none."""
        return next((i for i, op in enumerate(self.ops) if op.phase is Phase.BACKWARD), len(self.ops))

    @cached_property
    def arrays(self) -> Arrays:
        """The same facts as flat arrays; made once."""
        return _arrays(self)

    @cached_property
    def fingerprint(self) -> str:
        """Names the step's structure: ops, values, bytes and what must run once. Costs and source lines do not count,
        so a plan stays valid when the same step is measured again.
        """
        digest = hashlib.sha256()
        for value in self.values:
            digest.update(f"{value.bytes} {value.role.value}\n".encode())
        for op in self.ops:
            digest.update(f"{op.name} {op.phase.value} {op.reads} {op.writes} {bool(op.once)}\n".encode())
        return digest.hexdigest()[:16]

    def __str__(self) -> str:
        lines = [HEADER]
        for i, value in enumerate(self.values):
            lines.append(f"value {i} {value.role.value} bytes={value.bytes} name={json.dumps(value.name)}")
        for i, op in enumerate(self.ops):
            numbers = f"reads={_join(op.reads)} writes={_join(op.writes)} ns={op.ns} scratch={op.scratch}"
            line = f"op {i} {op.phase.value} {numbers} name={json.dumps(op.name)}"
            if op.once:
                line += f" once={json.dumps(op.once)}"
            if op.where:
                line += f" where={json.dumps(op.where)}"
            lines.append(line)
        return "\n".join(lines) + "\n"

    @classmethod
    def parse(cls, text: str) -> Program:
        """The Program that `str` printed as `text`.

        >>> program = Program((Value("x", 4, Role.ACTIVATION),), (Op("make", Phase.FORWARD, (), (0,)),))
        >>> Program.parse(str(program)) == program
        True
        """
        lines = text.splitlines()
        if not lines or lines[0].strip() != HEADER:
            raise InvalidProgram(f"the first line of a program must be {HEADER!r}")
        values: list[Value] = []
        ops: list[Op] = []
        for number, line in enumerate(lines[1:], start=2):
            if not line.strip():
                continue
            kind, index, label, facts = _parse_line(line, number)
            if kind == "value":
                _expect_index(index, len(values), number)
                values.append(_value_of({**facts, "role": label}, f"line {number}"))
            elif kind == "op":
                _expect_index(index, len(ops), number)
                ops.append(_op_of({**facts, "phase": label}, f"line {number}"))
            else:
                raise InvalidProgram(f"line {number}: starts with {kind!r}, not with 'value' or 'op'")
        return cls(tuple(values), tuple(ops))

    def to_json(self) -> dict[str, Any]:
        """The Program as a JSON object."""
        return {
            "values": [{"name": v.name, "bytes": v.bytes, "role": v.role.value} for v in self.values],
            "ops": [
                {
                    "name": op.name,
                    "phase": op.phase.value,
                    "reads": list(op.reads),
                    "writes": list(op.writes),
                    "ns": op.ns,
                    "scratch": op.scratch,
                    "once": op.once,
                    "where": op.where,
                }
                for op in self.ops
            ],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Program:
        """The Program that `to_json` wrote."""
        if not isinstance(data, Mapping) or not {"values", "ops"} <= set(data):
            raise InvalidProgram("a program must be an object with the fields 'values' and 'ops'")
        for field in ("values", "ops"):
            if not isinstance(data[field], (list, tuple)):
                raise InvalidProgram(f"{field} is {data[field]!r}, not a list")
        values = tuple(_value_of(v, f"values[{i}]") for i, v in enumerate(data["values"]))
        ops = tuple(_op_of(o, f"ops[{i}]") for i, o in enumerate(data["ops"]))
        return cls(values, ops)


def _join(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers)) or "-"


def _parse_line(line: str, number: int) -> tuple[str, int, str, dict[str, Any]]:
    """`op 3 forward reads=1,2 name="a b"` as ("op", 3, "forward", {"reads": (1, 2), "name": "a b"})."""
    head = line.split(maxsplit=3)
    if len(head) < 4 or not (head[1].isascii() and head[1].isdigit()):
        raise InvalidProgram(f"line {number}: expected 'value|op NUMBER KIND field=...', found {line!r}")
    facts: dict[str, Any] = {}
    rest = head[3].strip()
    decoder = json.JSONDecoder()
    while rest:
        name, equals, rest = rest.partition("=")
        if not equals:
            raise InvalidProgram(f"line {number}: {name!r} has no value")
        if name in facts:
            raise InvalidProgram(f"line {number}: {name} is there twice")
        if rest.startswith('"'):
            try:
                facts[name], end = decoder.raw_decode(rest)
            except json.JSONDecodeError as error:
                raise InvalidProgram(f"line {number}: {name} is not a quoted string") from error
            rest = rest[end:].lstrip()
        else:
            word, _, rest = rest.partition(" ")
            facts[name] = _numbers(word, name, number)
            rest = rest.lstrip()
    return head[0], int(head[1]), head[2], facts


def _numbers(word: str, name: str, line: int) -> int | tuple[int, ...]:
    try:
        if name in ("reads", "writes"):
            return () if word == "-" else tuple(int(part) for part in word.split(","))
        return int(word)
    except ValueError as error:
        raise InvalidProgram(f"line {line}: {name}={word} is not made of whole numbers") from error


def _expect_index(found: int, wanted: int, line: int) -> None:
    if found != wanted:
        raise InvalidProgram(f"line {line}: numbered {found}, but {wanted} comes next")


def _value_of(facts: Mapping[str, Any], place: str) -> Value:
    _expect_fields(facts, {"name", "bytes", "role"}, set(), place)
    role = _enum(Role, facts["role"], f"{place}: role")
    return Value(_text(facts, "name", place), _number(facts, "bytes", place), role)


def _op_of(facts: Mapping[str, Any], place: str) -> Op:
    _expect_fields(facts, {"name", "phase", "reads", "writes"}, {"ns", "scratch", "once", "where"}, place)
    return Op(
        name=_text(facts, "name", place),
        phase=_enum(Phase, facts["phase"], f"{place}: phase"),
        reads=_row(facts, "reads", place),
        writes=_row(facts, "writes", place),
        ns=_number(facts, "ns", place),
        scratch=_number(facts, "scratch", place),
        once=_text(facts, "once", place),
        where=_text(facts, "where", place),
    )


def _text(facts: Mapping[str, Any], field: str, place: str) -> str:
    found = facts.get(field, "")
    if not isinstance(found, str):
        raise InvalidProgram(f"{place}: {field} is {found!r}, not a string")
    return found


def _number(facts: Mapping[str, Any], field: str, place: str) -> int:
    found = facts.get(field, 0)
    if not isinstance(found, int) or isinstance(found, bool):
        raise InvalidProgram(f"{place}: {field} is {found!r}, not a whole number")
    return found


def _row(facts: Mapping[str, Any], field: str, place: str) -> tuple[int, ...]:
    found = facts[field]
    if not isinstance(found, (list, tuple)) or any(not isinstance(n, int) or isinstance(n, bool) for n in found):
        raise InvalidProgram(f"{place}: {field} is {found!r}, not a list of whole numbers")
    return tuple(found)


def _expect_fields(facts: Mapping[str, Any], wanted: set[str], optional: set[str], place: str) -> None:
    if not isinstance(facts, Mapping):
        raise InvalidProgram(f"{place}: not an object")
    missing, extra = wanted - set(facts), set(facts) - wanted - optional
    if missing:
        raise InvalidProgram(f"{place}: the field {min(missing)!r} is missing")
    if extra:
        raise InvalidProgram(f"{place}: there is no field {min(extra)!r}")


def _enum(kind: type[E], word: str, place: str) -> E:
    try:
        return kind(word)
    except ValueError as error:
        raise InvalidProgram(f"{place} is {word!r}, not one of {', '.join(e.value for e in kind)}") from error


def _check(program: Program) -> None:
    """Raise InvalidProgram unless the parts agree."""
    values, ops = program.values, program.ops
    for i, value in enumerate(values):
        if not isinstance(value.bytes, int) or value.bytes < 0:
            raise InvalidProgram(f"value {i} ({value.name}): bytes is {value.bytes!r}, not a whole number >= 0")
    for what, total in (
        ("bytes", sum(value.bytes for value in values) + sum(op.scratch for op in ops if isinstance(op.scratch, int))),
        ("nanoseconds", sum(op.ns for op in ops if isinstance(op.ns, int))),
    ):
        if total > MOST:
            raise InvalidProgram(f"{total} {what} in all, more than {MOST}: arrays could not hold their sums")
    made = [value.role is Role.STATIC for value in values]
    written = [False] * len(values)
    backward = False
    for i, op in enumerate(ops):
        place = f"op {i} ({op.name})"
        if op.phase is Phase.BACKWARD:
            backward = True
        elif backward:
            raise InvalidProgram(f"{place}: a forward op after a backward op")
        if not all(isinstance(n, int) and n >= 0 for n in (op.ns, op.scratch)):
            raise InvalidProgram(f"{place}: ns and scratch must be whole numbers >= 0")
        for v in (*op.reads, *op.writes):
            if not (isinstance(v, int) and 0 <= v < len(values)):
                raise InvalidProgram(f"{place}: there is no value {v!r}")
        if len(set(op.reads)) < len(op.reads) or len(set(op.writes)) < len(op.writes):
            raise InvalidProgram(f"{place}: names a value twice")
        for v in op.reads:
            if not made[v]:
                raise InvalidProgram(f"{place}: reads value {v} ({values[v].name}) before it is made")
        for v in op.writes:
            if made[v]:
                what = "is written by an earlier op" if written[v] else "is static and must not be written"
                raise InvalidProgram(f"{place}: value {v} ({values[v].name}) {what}")
            made[v] = written[v] = True
    for i, value in enumerate(values):
        if not made[i]:
            raise InvalidProgram(f"value {i} ({value.name}) is written by no op")


def _arrays(program: Program) -> Arrays:
    static = np.array([v.role is Role.STATIC for v in program.values], dtype=bool)
    is_static = static.tolist()
    reads = [[v for v in op.reads if not is_static[v]] for op in program.ops]
    writes = [op.writes for op in program.ops]
    flat_writes = np.array([v for row in writes for v in row], dtype=np.int64)
    writes_start = _starts(map(len, writes), len(writes))
    writer = np.full(len(program.values), -1, dtype=np.int64)
    writer[flat_writes] = np.repeat(np.arange(len(writes)), np.diff(writes_start))
    return Arrays(
        bytes=np.array([v.bytes for v in program.values], dtype=np.int64),
        static=static,
        output=np.array([v.role is Role.OUTPUT for v in program.values], dtype=bool),
        ns=np.array([op.ns for op in program.ops], dtype=np.int64),
        scratch=np.array([op.scratch for op in program.ops], dtype=np.int64),
        once=np.array([bool(op.once) for op in program.ops], dtype=bool),
        reads_start=_starts(map(len, reads), len(reads)),
        reads=np.array([v for row in reads for v in row], dtype=np.int64),
        writes_start=writes_start,
        writes=flat_writes,
        writer=writer,
    )


def _starts(lengths: Iterable[int], count: int) -> NDArray[np.int64]:
    starts = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.fromiter(lengths, dtype=np.int64, count=count), out=starts[1:])
    return starts
