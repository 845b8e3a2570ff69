"""The noun Dag: the intermediate values of a network and which of them each one is made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lowtide.errors import InvalidProblem
from lowtide.planners.fields import check_counts, check_names, shown

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
        if not self.bytes:
            raise InvalidProblem("bytes: there must be at least one value", "bytes")
        check_counts(self.bytes, "bytes")
        check_counts(self.ns, "ns", len(self.bytes))
        for name, numbers in (("bytes", self.bytes), ("ns", self.ns)):
            if sum(numbers) >= TOTAL:
                raise InvalidProblem(f"{name}: adds up to {sum(numbers)}, more than {TOTAL - 1}", name)
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
    def from_json(cls, data: object) -> Dag:
        """The dag that `to_json` wrote; InvalidProblem names the field that is missing, unknown or out of range.

        >>> Dag.from_json({"bytes": [4, 2], "ns": [1, 1], "edges": [[0, 1]]}).before
        ((), (0,))
        """
        fields = check_names(data, ("bytes", "ns", "edges"))
        edges = fields["edges"]
        if isinstance(edges, str) or not isinstance(edges, Sequence):
            raise InvalidProblem(f"edges: {shown(edges)} is not a list of pairs [u, v]", "edges")
        for i, edge in enumerate(edges):
            if isinstance(edge, str) or not isinstance(edge, Sequence) or len(edge) != 2:
                raise InvalidProblem(f"edges: entry {i} is {shown(edge)}, not a pair [u, v]", "edges")
        sizes, times = check_counts(fields["bytes"], "bytes"), check_counts(fields["ns"], "ns")
        return cls(sizes, times, tuple((edge[0], edge[1]) for edge in edges))

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


def _check_edges(edges: tuple[tuple[int, int], ...], n: int) -> None:
    seen: set[tuple[int, int]] = set()
    for i, (u, v) in enumerate(edges):
        if not (type(u) is int and type(v) is int):
            wrong = "not a pair of whole numbers"
        elif not (0 <= u < n and 0 <= v < n):
            wrong = f"and the values are 0 to {n - 1}"
        elif u >= v:
            wrong = "which does not go from a lower number to a higher one"
        elif (u, v) in seen:
            wrong = "which is there twice"
        else:
            seen.add((u, v))
            continue
        raise InvalidProblem(f"edges: entry {i} is {shown([u, v])}, {wrong}", "edges")
