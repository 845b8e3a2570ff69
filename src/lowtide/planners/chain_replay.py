"""What memory holds while a sequence of runs is carried out on a Chain, by the chain's own rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lowtide.errors import InvalidPlan
from lowtide.planners.chain import Chain


@dataclass(frozen=True, slots=True)
class ChainPlan:
    """Runs of a chain's stages, and what they cost.

    time      nanoseconds of all runs
    peak      bytes at the fullest run, the chain's input among them
    runs      words, such as "F_ck 1", "F_none 2", "F_all 3", "loss", "B 3", and "drop value 1" or "drop saved 3"
    optimal   whether no plan of the class that the planner names is faster within the budget
    """

    time: int
    peak: int
    runs: tuple[str, ...]
    optimal: bool


@dataclass(frozen=True, slots=True)
class Replay:
    """What a replay saw.

    time   nanoseconds of all runs
    peak   bytes at the fullest run
    at     the first run that reaches the peak
    """

    time: int
    peak: int
    at: str


def replay(chain: Chain, runs: Iterable[str]) -> Replay:
    """Carry out `runs`; InvalidPlan where one needs what is not held, or the gradient of the input is never made.

    Memory during a run is all that was held before, all that it writes, and its scratch. With a^l a value, ā^l what
    stage l records (a^l included) and δ^l a gradient:

        F_none l   needs a^(l-1), leaves a^l instead of it
        F_ck l     needs a^(l-1) or ā^(l-1), keeps it, adds a^l
        F_all l    needs a^(l-1) or ā^(l-1), keeps it, adds ā^l
        loss       needs a^L or ā^L, adds δ^L; then a plain a^L goes
        B l        needs δ^l, ā^l, and a^(l-1) or ā^(l-1); adds δ^(l-1); then δ^l, ā^l, a plain a^l, a plain a^(l-1) go
        drop       of a value (a^l) or of what was saved (ā^l) takes no time
    """
    L = chain.stages
    size = {("value", l): chain.value_bytes[l] for l in range(L + 1)}
    size |= {("saved", l): chain.saved_bytes[l - 1] for l in range(1, L + 1)}
    size |= {("grad", l): chain.grad_bytes[l] for l in range(L + 1)}
    held = {("value", 0)}
    now = chain.value_bytes[0]
    time, peak, at = 0, now, ""
    for place, run in enumerate(runs):
        word, _, rest = run.rpartition(" ")
        if run == "loss":
            word, l = "loss", L + 1
        elif word in _KINDS and rest.isdecimal() and int(rest) <= L and (int(rest) or word == "drop value"):
            l = int(rest)
        else:
            raise InvalidPlan(f"run {place}: there is no run {run!r}", place)
        needs, writes, goes = _effect(word, l)
        for name in needs:
            if name not in held and not (word in _READ_SAVED and ("saved", name[1]) in held):
                raise InvalidPlan(f"run {place}: {run} needs {name[0]} {name[1]}, which is not held", place)
        scratch, ns = _cost(chain, word, l)
        during = now + scratch + sum(size[name] for name in writes)
        if during > peak:
            peak, at = during, run
        held |= set(writes)
        held -= set(goes)
        now = sum(size[name] for name in held)
        time += ns
    if ("grad", 0) not in held:
        raise InvalidPlan("the gradient of the chain's input is never made")
    return Replay(time, peak, at)


_KINDS = ("F_none", "F_ck", "F_all", "B", "drop value", "drop saved")
_READ_SAVED = ("F_ck", "F_all", "loss", "B")  # runs that take a^(l-1) out of ā^(l-1) too
Names = list[tuple[str, int]]


def _effect(word: str, l: int) -> tuple[Names, Names, Names]:
    """What a run needs, what it writes, and what goes after it; l is L + 1 for the loss."""
    before = ("value", l - 1)
    match word:
        case "F_none":
            return [before], [("value", l)], [before]
        case "F_ck":
            return [before], [("value", l)], []
        case "F_all":
            return [before], [("saved", l)], []
        case "loss":
            return [before], [("grad", l - 1)], [before]
        case "B":
            goes = [("grad", l), ("saved", l), ("value", l), before]
            return [("grad", l), ("saved", l), before], [("grad", l - 1)], goes
        case _:
            gone = (word.removeprefix("drop "), l)
            return [gone], [], [gone]


def _cost(chain: Chain, word: str, l: int) -> tuple[int, int]:
    """Scratch and nanoseconds of a run."""
    if word == "loss":
        return chain.loss_scratch, 0
    if word == "B":
        return chain.backward_scratch[l - 1], chain.backward_ns[l - 1]
    if word.startswith("drop"):
        return 0, 0
    return chain.forward_scratch[l - 1], chain.forward_ns[l - 1]
