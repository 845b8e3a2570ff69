"""Makes docs/devices-figures.md from the lines of `bench/estimates.py` and `bench/devices.py`:

cat bench/results/estimates.jsonl bench/results/devices.jsonl | python bench/devices_table.py > docs/devices-figures.md
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

Row = dict[str, Any]
MIB = 2**20
PEERS = ("every block", "every second block", "every third block", "every fourth block", "save_on_cpu")

HEAD = """# Figures of devices

Made by `bench/devices_table.py` from the lines of `bench/estimates.py` and `bench/devices.py`, which say what
is measured.
"""
ESTIMATES = """## Estimated and measured costs

Forward and backward in plain PyTorch, and what the sum of all operators' costs makes of it: by the roofline, and by
measuring each distinct call.
"""
STEPS = """Peaks are all that the allocator had handed out at most; *extra* is the step's time above plain training's
in the same run.
"""


def draw(rows: Iterable[Row]) -> str:
    """The page."""
    rows = list(rows)
    by_workload: dict[tuple[str, str], dict[str, Row]] = {}
    for row in (row for row in rows if row["bench"] == "devices"):
        by_workload.setdefault((row["device"], row["workload"]), {})[row["case"]] = row
    lines = [HEAD, *_estimates([row for row in rows if row["bench"] == "estimates"])]
    for device in dict.fromkeys(device for device, _ in by_workload):
        found = {name: cases for (where, name), cases in by_workload.items() if where == device}
        lines += [f"## Steps on {device}", "", STEPS, *_promises(found), "", *_peers(found), ""]
        for name, cases in found.items():
            lines += [f"### {name}", "", *_workload(cases), ""]
    return "\n".join(lines).rstrip() + "\n"


def _estimates(rows: list[Row]) -> list[str]:
    if not rows:
        return []
    lines = [
        *(ESTIMATES, "| model | device | calls | distinct | plain ms | roofline | measured | seconds to measure |"),
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['model']} | {_where(row)} | {row['calls']} | {row['distinct']} | "
            f"{row['plain_ms']:.1f} | × {row['estimated_of_plain']:.2f} | × {row['measured_of_plain']:.2f} | "
            f"{row['measuring_seconds']:.1f} |"
        )
    return [*lines, ""]


def _where(row: Row) -> str:
    return f"{row['device']}, one thread" if row["threads"] == 1 else row["device"]


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of points (peak, time), those that no other is below in both, by rising peak."""
    kept: list[tuple[float, float]] = []
    for peak, time in sorted(points):
        if not kept or time < kept[-1][1]:
            kept.append((peak, time))
    return kept


def between(points: Sequence[tuple[float, float]], peak: float) -> float:
    """The time at a peak, on straight lines between the points of the front; infinite below the least."""
    known = front(points)
    if not known or peak < known[0][0]:
        return math.inf
    for (low, slow), (high, fast) in pairwise(known):
        if peak <= high:
            return slow + (fast - slow) * (peak - low) / (high - low)
    return known[-1][1]


def _promises(found: dict[str, dict[str, Row]]) -> list[str]:
    """Promised against measured, over all plans of a workload."""
    lines = [
        "| workload | plans | within budget | peak off, median | worst | time off, median | worst | extra off, worst | "
        "nothing rerun | bits |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, cases in found.items():
        plans = [row for row in cases.values() if "promised_peak" in row]
        failed = sum("error" in row for case, row in cases.items() if case.startswith(("budget", "at ")))
        peaks = [abs(row["peak"] / row["promised_peak"] - 1) for row in plans]
        times = [abs(row["promised_ms"] / row["ms_passes"] - 1) for row in plans]
        kept = sum(row["kept"] for row in plans)
        lines.append(
            f"| {name} | {len(plans)}{f' and {failed} failed' if failed else ''} | {kept} | {_percents(peaks)} | "
            f"{_percents(times)} | {_extra_off(cases, plans)} | {_overhead(cases)} | {_bits(cases)} |"
        )
    return lines


def _percents(shares: list[float]) -> str:
    if not shares:
        return "– | –"
    return f"{100 * statistics.median(shares):.2f} % | {100 * max(shares):.2f} %"


def _extra_off(cases: dict[str, Row], plans: list[Row]) -> str:
    """How far promised extra time is from measured extra time, where that exceeds 5 ms."""
    plain, promised = _ms(cases, "ms_passes"), cases.get("range", {}).get("promised_ms")
    if plain is None or promised is None:
        return "–"
    shares = [
        abs((row["promised_ms"] - promised) / (row["ms_passes"] - plain) - 1)
        for row in plans
        if row["ms_passes"] - plain > 5
    ]
    return f"{100 * max(shares):.1f} %" if shares else "none above 5 ms"


def _overhead(cases: dict[str, Row]) -> str:
    row = cases.get("keep-all", {})
    if "overhead" not in row:
        return row.get("error", "–")[:40]
    return f"{100 * row['overhead']:+.2f} %, {row['peak_difference'] / MIB:+.1f} MiB"


def _bits(cases: dict[str, Row]) -> str:
    row = cases.get("exact", {})
    if "deterministic" not in row:
        return row.get("error", "–")[:40]
    same = row["deterministic"]
    if not same["plain_repeats"]:
        return f"plain does not repeat: noise {same['noise']:.1e}, here {same['distance']:.1e}"
    return "equal" if not same["differing"] else f"{len(same['differing'])} differ"


def _ms(cases: dict[str, Row], field: str = "ms") -> float | None:
    """Plain training's time: the mean of the runs before and after."""
    found = [cases[case][field] for case in ("plain", "plain again") if field in cases.get(case, {})]
    return statistics.mean(found) if found else None


def _peers(found: dict[str, dict[str, Row]]) -> list[str]:
    """At the middle of the range of memory, and at the least."""
    lines = [
        "Extra time at the middle between the least budget and plain training, on straight lines between points;",
        "and the least peaks.",
        "",
        "| workload | here | best peer | share | here at the peers' peaks, worst | least here | least peer |",
        "|---|---|---|---|---|---|---|",
    ]
    shares = []
    for name, cases in found.items():
        plain = _ms(cases)
        mine = [(row["peak"], row["ms"]) for row in cases.values() if "promised_peak" in row]
        theirs = [(cases[peer]["peak"], cases[peer]["ms"]) for peer in PEERS if "peak" in cases.get(peer, {})]
        if plain is None or not mine or not theirs or "peak" not in cases.get("plain", {}):
            lines.append(f"| {name} | – | – | – | – | – | – |")
            continue
        top = (cases["plain"]["peak"], plain)
        middle = (min(mine)[0] + top[0]) / 2
        here, there = (between([*points, top], middle) / plain - 1 for points in (mine, theirs))
        share = here / there if there > 0 else math.inf
        if math.isfinite(there) and here > 0 and there > 0:
            shares.append(share)
        beside = [
            cases[f"at {peer}"]["ms"] / cases[peer]["ms"] - 1 for peer in PEERS if "ms" in cases.get(f"at {peer}", {})
        ]
        worst = f"{100 * max(beside):+.1f} %" if beside else "–"
        lines.append(
            f"| {name} | {100 * here:.1f} % | {_percent(there)} | {share:.2f} | {worst} | "
            f"{min(mine)[0] / MIB:.0f} MiB | {min(theirs)[0] / MIB:.0f} MiB |"
        )
    if shares:
        lines.append(f"\nGeometric mean of the shares: {statistics.geometric_mean(shares):.2f}.")
    return lines


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if math.isfinite(share) else "out of reach"


def _workload(cases: dict[str, Row]) -> list[str]:
    """Every case."""
    plain = _ms(cases)
    lines = [
        "| case | peak MiB | promised | ms | extra | passes promised | measured | reruns |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case, row in cases.items():
        if "error" in row:
            lines.append(f"| {case} | {row['error'].replace('|', '/')[:160]} | | | | | | |")
        elif "ms" in row:
            extra = f"{100 * (row['ms'] / plain - 1):+.1f} %" if plain else ""
            promised = f"{row['promised_peak'] / MIB:.1f}" if "promised_peak" in row else ""
            passes = f"{row['promised_ms']:.2f}" if "promised_ms" in row else ""
            lines.append(
                f"| {case} | {row['peak'] / MIB:.1f} | {promised} | {row['ms']:.2f} | {extra} | {passes} | "
                f"{row['ms_passes']:.2f} | {row.get('reruns', '')} |"
            )
    notes = [
        f"{case}: {row['seconds_measuring']} s for {row['ops']} operators"
        for case, row in cases.items()
        if "seconds_measuring" in row
    ]
    half = cases.get("half the memory", {})
    if "limit" in half:
        notes.append(
            f"with {half['limit'] / MIB:.0f} MiB in all, plain training {'fits' if half['plain_fits'] else 'fails'}, "
            f"and this trains in {half['peak'] / MIB:.0f} MiB"
        )
    return [*lines, "", *(f"- {note}" for note in notes)] if notes else lines


if __name__ == "__main__":
    sys.stdout.write(draw(map(json.loads, sys.stdin)))
