"""Programs of real training steps, captured once by `capture.py` and kept beside it.

load("gpt2-12")     a Program, with estimated costs of an H100
names()             what there is
"""

from __future__ import annotations

import gzip
from pathlib import Path

from lowtide.program import Program

FOLDER = Path(__file__).parent / "programs"
SUFFIX = ".txt.gz"


def names() -> list[str]:
    """The names of the kept Programs."""
    return sorted(path.name.removesuffix(SUFFIX) for path in FOLDER.glob(f"*{SUFFIX}"))


def load(name: str) -> Program:
    """The kept Program of this name."""
    return Program.parse(gzip.decompress((FOLDER / f"{name}{SUFFIX}").read_bytes()).decode())


def save(name: str, program: Program) -> int:
    """Keep a Program; the bytes it takes. The same Program always makes the same file."""
    FOLDER.mkdir(exist_ok=True)
    packed = gzip.compress(str(program).encode(), mtime=0)
    (FOLDER / f"{name}{SUFFIX}").write_bytes(packed)
    return len(packed)
