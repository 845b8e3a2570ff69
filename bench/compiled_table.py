"""Makes the table of docs/compiled_steps.md from the lines of `bench/compiled.py`:

python bench/compiled_table.py < bench/results/compiled.jsonl > docs/compiled_steps.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import groupby
from typing import Any

Row = dict[str, Any]

HEAD = """# Compiled steps, measured

Made by `bench/compiled_table.py` from `bench/results/compiled.jsonl` (`bench/compiled.py`). Peaks are of all memory
that a step holds; on a CPU they are what the allocator gave out, and milliseconds there say little. *Promised* is the
plan's own peak, known before the first step ran. *Planning* is the share of everything that plain `torch.compile` would
not do, in the time that compiling took.
"""


def table(rows: list[Row]) -> Iterator[str]:
    """The lines of one workload on one device."""
    yield f"## {rows[0]['workload']}, {rows[0]['device']}, torch {rows[0]['torch']}"
    yield ""
    yield "| step | peak, MiB | promised, MiB | ms | reruns | gradients | planning |"
    yield "|---|---:|---:|---:|---:|---|---:|"
    plain = next((row for row in rows if row["case"] == "plain"), {})
    for row in sorted(rows, key=lambda row: -row.get("peak", 0)):
        if "error" in row:
            what = f"refused: at least {row['needed'] / 2**20:.2f} MiB" if "needed" in row else row["error"]
            yield f"| {label(row)} | {what} | | | | | |"
            continue
        promised = f"{row['promised'] / 2**20:.2f}" if "promised" in row else ""
        share = f"{100 * row['plan_seconds'] / row['compile_seconds']:.0f} %" if row.get("compile_seconds") else ""
        same = all(row.get(name) == plain.get(name) for name in ("loss", "gradient"))
        yield (
            f"| {label(row)} | {row['peak'] / 2**20:.2f} | {promised} | {row['ms']:.1f} | {row.get('reruns', '')} | "
            f"{'as plain' if same else 'differ in the last bits or more'} | {share} |"
        )
    yield ""


def label(row: Row) -> str:
    """What the step was, for people."""
    kind, _, number = str(row["case"]).partition(" ")
    names = {
        "budget": f"`activation_memory_budget` {number}",
        "checkpoint": "every block checkpointed" if number == "1" else "every second block checkpointed",
        "selective": "selective checkpointing of every block",
        "plain": "plain `torch.compile`",
    }
    return names.get(kind) or f"Lowtide in {int(number) / 2**20:.2f} MiB"


def draw(rows: list[Row]) -> str:
    """The whole page."""
    by = sorted(rows, key=lambda row: (row["device"], row["workload"]))
    parts = [HEAD]
    for _, group in groupby(by, key=lambda row: (row["device"], row["workload"])):
        parts.append("\n".join(table(list(group))))
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    sys.stdout.write(draw([json.loads(line) for line in sys.stdin]))
