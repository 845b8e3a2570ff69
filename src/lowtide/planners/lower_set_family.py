"""Families of lower sets of a Dag, as arrays that a dynamic program over pairs can read quickly."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from lowtide.errors import InvalidProblem
from lowtide.planners.dag import Dag

Bits = NDArray[np.bool_]
Ints = NDArray[np.int64]

MOST = 20_000
LOOKED_AT = 1000


class Family(Enum):
    """Which lower sets a strategy may be made of.

    EXACT    all of them
    PRUNED   for each value, what it is made from, directly or not, and itself; the empty set; all values
    """

    EXACT = "exact"
    PRUNED = "pruned"


@dataclass(frozen=True)
class LowerSets:
    """P lower sets, smaller ones first, the first empty and the last full.

    member     member[v, p]: is value v in set p
    bytes      of all members of p
    ns         of all members of p
    ahead      bytes of the values outside p made from members of p, plus bytes of the values outside p that those are
               made from: what backward of the last block of p holds beyond the block
    boundary   of each p, the members from which something outside is made
    kept       bytes of the boundary of p
    spared     ns of the boundary of p
    first      of each p, the values outside that are made from members only; a lower set is inside p if and only if it
               holds none of these
    """

    member: Bits
    bytes: Ints
    ns: Ints
    ahead: Ints
    boundary: tuple[NDArray[np.intp], ...]
    kept: Ints
    spared: Ints
    first: tuple[NDArray[np.intp], ...]

    def __len__(self) -> int:
        return len(self.bytes)

    def members(self, p: int) -> frozenset[int]:
        """The values in set p."""
        return frozenset(np.flatnonzero(self.member[:, p]).tolist())


def lower_sets(dag: Dag, family: Family) -> LowerSets:
    """The lower sets of `dag` in `family`; InvalidProblem when there are more than MOST of them."""
    return _described(dag, _all(dag) if family is Family.EXACT else _of_ancestors(dag))


def some_lower_sets(dag: Dag, most: int) -> LowerSets:
    """At most about `most` lower sets of a dag of any size: of the family `pruned`, and of the values before each one.

    A dag of several parts has sets of the first kind in one part at a time only; in those of the second kind parts
    follow one another. Of each kind those of a thousand values, spread evenly, are looked at; of each stretch of equal
    bytes the one of least boundary is taken.
    """
    n = len(dag)
    ancestors = _of_ancestors(dag)
    some = np.unique(np.linspace(0, n - 1, min(n, LOOKED_AT)).astype(np.intp))
    before = np.arange(n)[:, None] <= some[None, :]
    member = np.hstack([ancestors[:, some], before, np.zeros((n, 1), dtype=bool)])
    return _thinned(_described(dag, np.unique(member, axis=1)), most)


def _described(dag: Dag, member: Bits) -> LowerSets:
    member = np.ascontiguousarray(member[:, np.argsort(member.sum(axis=0), kind="stable")])
    none = np.zeros_like(member[0])
    within = [np.logical_and.reduce(member[list(row)]) if row else ~none for row in dag.before]
    next_to = np.array(
        [~member[v] & np.logical_or.reduce([none, *member[list(dag.before[v])]]) for v in range(len(dag))]
    )
    beside = np.array(
        [~member[v] & np.logical_or.reduce([none, *next_to[list(dag.after[v])]]) for v in range(len(dag))]
    )
    sizes, times = np.array(dag.bytes, dtype=np.int64), np.array(dag.ns, dtype=np.int64)
    ahead = _weigh(sizes, next_to) + _weigh(sizes, beside)
    del next_to, beside
    edge = np.array([member[v] & ~np.logical_and.reduce([~none, *member[list(dag.after[v])]]) for v in range(len(dag))])
    return LowerSets(
        member=member,
        bytes=_weigh(sizes, member),
        ns=_weigh(times, member),
        ahead=ahead,
        boundary=_columns(edge),
        kept=_weigh(sizes, edge),
        spared=_weigh(times, edge),
        first=_columns(np.array([~member[v] & within[v] for v in range(len(dag))])),
    )


def _thinned(sets: LowerSets, most: int) -> LowerSets:
    """At most `most` of the sets, but at least the empty one and the full one: of each stretch of equal bytes the one
    of least boundary.
    """
    count = len(sets)
    if count <= max(most, 2):
        return sets
    windows = most - 2
    window = sets.bytes * windows // max(1, int(sets.bytes[-1]) + 1)
    chosen: dict[int, int] = {}
    for p in (np.argsort(sets.kept[1:-1], kind="stable") + 1).tolist():
        chosen.setdefault(int(window[p]), p)
    columns = sorted({0, count - 1, *chosen.values()})
    return LowerSets(
        member=np.ascontiguousarray(sets.member[:, columns]),
        bytes=sets.bytes[columns],
        ns=sets.ns[columns],
        ahead=sets.ahead[columns],
        boundary=tuple(sets.boundary[p] for p in columns),
        kept=sets.kept[columns],
        spared=sets.spared[columns],
        first=tuple(sets.first[p] for p in columns),
    )


def _all(dag: Dag) -> Bits:
    """Every lower set once, as columns: each value in turn joins the sets that hold all it is made from."""
    member = np.zeros((len(dag), 16), dtype=bool)
    count = 1
    for v, row in enumerate(dag.before):
        joined = np.flatnonzero(np.logical_and.reduce(member[list(row), :count])) if row else np.arange(count)
        if count + len(joined) > MOST:
            message = f"family: the dag has more than {MOST} lower sets, too many to try all; ask for 'pruned'"
            raise InvalidProblem(message, "family")
        while count + len(joined) > member.shape[1]:
            member = np.hstack([member, np.zeros_like(member)])
        new = slice(count, count + len(joined))
        member[:v, new] = member[:v, joined]
        member[v, new] = True
        count += len(joined)
    return member[:, :count]


def _of_ancestors(dag: Dag) -> Bits:
    n = len(dag)
    member = np.zeros((n, n + 2), dtype=bool)
    for v, row in enumerate(dag.before):
        member[:, v] = member[:, list(row)].any(axis=1)
        member[v, v] = True
    member[:, n + 1] = True
    already_full = member[:, :n].all(axis=0).any()
    return member[:, : n + 1] if already_full else member


def _weigh(weights: Ints, columns: Bits) -> Ints:
    total = np.zeros(columns.shape[1], dtype=np.int64)
    for weight, row in zip(weights, columns):
        total += weight * row
    return total


def _columns(bits: Bits) -> tuple[NDArray[np.intp], ...]:
    """For each column, the rows that are set."""
    which, rows = np.nonzero(bits.T)
    ends = np.cumsum(np.bincount(which, minlength=bits.shape[1]))
    return tuple(np.split(rows, ends[:-1]))
