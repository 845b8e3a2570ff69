"""The noun Dag: the intermediate values of a network and which of them each one is made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lowtide.errors import InvalidProblem

HEADER = "lowtide dag 1"
TOTAL = 2**53


@dataclass(frozen=True)
class Dag:
    """Values numbered so that each is made from lower numbers only.

    bytes   size of value v, >= 0; all together below 2**53
    ns      time to make value v once, >= 0; all together below 2**53
    edges   pairs (u, v) with u < v, each once: making v reads u

    Network inputs and parameters are not values here: they are always there and not counted.
    """

    bytes: tuple[int, ...]
    ns: tuple[int, ...]
    edges: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        _check_sizes("bytes", self.bytes)
        _check_sizes("ns", self.ns)
        if len(self.ns) != len(self.bytes):
            raise InvalidProblem(f"ns: {len(self.ns)} numbers for {len(self.bytes)} values", "ns")
        _check_edges(self.edges, len(self.bytes))

    def __len__(self) -> int:
        return len(self.bytes)

    @cached_property
    def before(self) -> tuple[tuple[int, ...], ...]:
        """What each value is made from, in index order."""
        rows: list[list[int]] = [[] for _ in self.bytes]
        for u, v in sorted(self.edges):
            rows[v].append(u)
        return tuple(map(tuple, rows))

    @cached_property
    def after(self) -> tuple[tuple[int, ...], ...]:
        """What is made from each value, in index order."""
        rows: list[list[int]] = [[] for _ in self.bytes]
        for u, v in sorted(self.edges):
            rows[u].append(v)
        return tuple(map(tuple, rows))

    def to_json(self) -> dict[str, Any]:
        """The dag as a JSON object."""
        return {"bytes": list(self.bytes), "ns": list(self.ns), "edges": [list(edge) for edge in self.edges]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Dag:
        """The dag that `to_json` wrote; InvalidProblem names the field that is missing, unknown or out of range.

        >>> Dag.from_json({"bytes": [4, 2], "ns": [1, 1], "edges": [[0, 1]]}).before
        ((), (0,))
        """
        if not isinstance(data, Mapping):
            raise InvalidProblem("problem: must be an object with the fields bytes, ns and edges", "problem")
        for name in ("bytes", "ns", "edges"):
            if name not in data:
                raise InvalidProblem(f"{name}: the field is missing", name)
            if not _is_list(data[name]):
                raise InvalidProblem(f"{name}: must be a list, found {data[name]!r}", name)
        for name in data:
            if name not in ("bytes", "ns", "edges"):
                raise InvalidProblem(f"{name}: a dag has no such field; it has bytes, ns and edges", str(name))
        edges = data["edges"]
        for i, edge in enumerate(edges):
            if not _is_list(edge) or len(edge) != 2:
                raise InvalidProblem(f"edges[{i}]: must be a pair [u, v], found {edge!r}", "edges")
        return cls(tuple(data["bytes"]), tuple(data["ns"]), tuple((edge[0], edge[1]) for edge in edges))

    def __str__(self) -> str:
        lines = [HEADER]
        for v in range(len(self)):
            reads = ",".join(map(str, self.before[v])) or "-"
            lines.append(f"value {v} bytes={self.bytes[v]} ns={self.ns[v]} reads={reads}")
        return "\n".join(lines) + "\n"

    @classmethod
    def parse(cls, text: str) -> Dag:
        """The dag that `str` printed as `text`, its edges in the order of the values that read."""
        lines = text.splitlines()
        if not lines or lines[0].strip() != HEADER:
            raise InvalidProblem(f"the first line of a dag must be {HEADER!r}", "problem")
        sizes, times, edges = [], [], []
        for number, line in enumerate(lines[1:]):
            try:
                kind, index, size, time, reads = line.split()
                if (kind, int(index)) != ("value", number):
                    raise ValueError
                sizes.append(int(size.removeprefix("bytes=")))
                times.append(int(time.removeprefix("ns=")))
                row = reads.removeprefix("reads=")
                edges += [(int(u), number) for u in row.split(",")] if row != "-" else []
            except ValueError as error:
                wanted = f"value {number} bytes=B ns=T reads=U,V"
                raise InvalidProblem(f"line {number + 2}: expected {wanted!r}, found {line!r}", "problem") from error
        return cls(tuple(sizes), tuple(times), tuple(edges))


def _is_list(thing: object) -> bool:
    return isinstance(thing, Sequence) and not isinstance(thing, str)


def _is_whole(thing: object) -> bool:
    return isinstance(thing, int) and not isinstance(thing, bool)


def _check_sizes(name: str, numbers: tuple[int, ...]) -> None:
    if not numbers:
        raise InvalidProblem(f"{name}: must hold a number for each of at least one value", name)
    for i, number in enumerate(numbers):
        if not _is_whole(number) or number < 0:
            raise InvalidProblem(f"{name}[{i}]: must be a whole number >= 0, found {number!r}", name)
    if sum(numbers) >= TOTAL:
        raise InvalidProblem(f"{name}: adds up to {sum(numbers)}, more than {TOTAL - 1}", name)


def _check_edges(edges: tuple[tuple[int, int], ...], n: int) -> None:
    seen: set[tuple[int, int]] = set()
    for i, (u, v) in enumerate(edges):
        if not (_is_whole(u) and _is_whole(v)):
            raise InvalidProblem(f"edges[{i}]: must be two whole numbers, found {[u, v]!r}", "edges")
        if not (0 <= u < n and 0 <= v < n):
            raise InvalidProblem(f"edges[{i}]: [{u}, {v}] leaves the values 0 to {n - 1}", "edges")
        if u >= v:
            raise InvalidProblem(f"edges[{i}]: [{u}, {v}] must go from a lower number to a higher one", "edges")
        if (u, v) in seen:
            raise InvalidProblem(f"edges[{i}]: [{u}, {v}] stands twice", "edges")
        seen.add((u, v))
