"""Who may import whom, read from the source; imports inside functions count as well."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "lowtide"
NOUNS = {"errors", "program", "plan", "budget", "check", "device", "allocator", "progress"}
MAY_IMPORT = {
    "errors": set(),
    "budget": {"errors"},
    "device": {"errors"},
    "allocator": set(),
    "program": {"errors"},
    "plan": {"errors", "program", "budget"},
    "frontier": {"errors", "plan", "budget"},
    "progress": set(),
    "batches": {"errors", "plan", "budget", "progress"},
    "check": {"errors", "plan", "budget"},
    "referee": {"errors", "program", "plan"},
    "_compat": {"errors"},
    "captured": {"errors", "program"},
    "capture": NOUNS | {"referee", "captured", "_compat"},
    "measure": NOUNS | {"referee", "captured", "_compat"},
    "apply": NOUNS | {"referee", "captured", "_compat"},
    # Inductor's own way through the rooms above it: what can be rerun and what it costs is judged there alike.
    "compiled": NOUNS | {"referee", "captured", "_compat", "capture", "measure"},
    "planners": NOUNS,  # And not the referee, which judges them.
    "report": NOUNS | {"referee"},
    "solve": NOUNS | {"referee", "planners"},
    "integrations": {"errors", "api"},
    "__init__": {"errors", "program", "plan", "batches", "check", "device", "measure", "api"},
}
KNOW_ALL = {"api", "fitted", "planning", "compiled_fit", "compiled_plan", "compiled_backend", "cli", "__main__"}
WITHOUT_TORCH = {
    "__init__",
    "errors",
    "budget",
    "device",
    "allocator",
    "batches",
    "check",
    "program",
    "plan",
    "referee",
    "planners",
    "progress",
    "report",
    "solve",
}


def breaches(room: str, text: str) -> Iterator[str]:
    """What a source file of a room must not do, with the line."""
    tree = ast.parse(text)
    aliases = {"torch": "torch"}
    for node in ast.walk(tree):
        for line, module in _imports(node, aliases):
            yield from (f"line {line}: {breach}" for breach in _judge(room, module))
    for node in ast.walk(tree):
        name = _dotted(node, aliases)
        if room != "_compat" and _is_private(name):
            yield f"line {node.lineno}: {name} is private to torch"  # type: ignore[attr-defined]


def _imports(node: ast.AST, aliases: dict[str, str]) -> Iterator[tuple[int, str]]:
    """The modules and names that a statement imports, in full; `aliases` learns what they are called."""
    if isinstance(node, ast.Import):
        for name in node.names:
            aliases[name.asname or name.name.split(".")[0]] = name.name if name.asname else name.name.split(".")[0]
            yield node.lineno, name.name
    elif isinstance(node, ast.ImportFrom):
        module = f"lowtide.{node.module or ''}".rstrip(".") if node.level else node.module or ""
        for name in node.names:
            aliases[name.asname or name.name] = f"{module}.{name.name}"
            yield node.lineno, f"{module}.{name.name}"
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute) and node.args:
        called = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        if called in ("__import__", "import_module"):
            wanted = node.args[0]
            yield node.lineno, str(wanted.value) if isinstance(wanted, ast.Constant) else "a name worked out as it runs"


def _judge(room: str, name: str) -> Iterator[str]:
    """What is wrong with a room's importing a name."""
    top, _, rest = name.partition(".")
    if top == "a name worked out as it runs":
        yield f"imports {name}"
    if top == "torch" and room in WITHOUT_TORCH:
        yield f"{room} must do without torch, and imports {name}"
    if room != "_compat" and _is_private(name):
        yield f"imports {name}, which is private to torch"
    if top == "lowtide" and room not in KNOW_ALL:
        other = rest.split(".")[0]
        known = MAY_IMPORT.keys() | KNOW_ALL
        if other not in known:
            yield f"imports {name}, which is in no room"
        elif other not in MAY_IMPORT[room] | {room}:
            yield f"{room} must not import {other}: {name}"


def _is_private(name: str) -> bool:
    first, *rest = name.split(".")
    if rest[:1] == ["ops"]:  # Operators have the names that they have.
        return False
    return first == "torch" and any(part.startswith("_") and not part.startswith("__") for part in rest)


def _dotted(node: ast.AST, aliases: dict[str, str]) -> str:
    """`torch._C.x` as such a string, whatever torch is called here; empty for what is no such chain."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not parts or not isinstance(node, ast.Name) or node.id not in aliases:
        return ""
    return ".".join([aliases[node.id], *reversed(parts)])


def room_of(path: Path) -> str:
    """A folder of src/lowtide is a room, and so is a file beside the folders."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_file_keeps_to_its_room(path: Path) -> None:
    assert room_of(path) in MAY_IMPORT.keys() | KNOW_ALL
    assert list(breaches(room_of(path), path.read_text())) == []


@pytest.mark.parametrize(
    ("room", "text", "found"),
    [
        ("errors", "import lowtide.program", "errors must not import program"),
        ("program", "from lowtide.plan import Plan", "program must not import plan"),
        ("program", "import torch", "without torch"),
        ("plan", "def f():\n    import torch.fx", "line 2: plan must do without torch"),
        ("referee", "from lowtide import planners", "referee must not import planners"),
        ("referee", "if TYPE_CHECKING:\n    from torch import Tensor", "line 2: referee must do without torch"),
        ("budget", "import importlib\nimportlib.import_module('torch')", "line 2: budget must do without torch"),
        ("planners", "from lowtide.referee import run", "planners must not import referee"),
        ("planners", "from lowtide import referee", "planners must not import referee"),
        (
            "planners",
            "def f():\n    from lowtide.capture.joint import capture",
            "line 2: planners must not import capture",
        ),
        ("planners", "import torch as t", "without torch"),
        ("planners", "def f(name):\n    return __import__(name)", "line 2: imports a name worked out as it runs"),
        ("report", "from torch import fx", "without torch"),
        ("report", "from lowtide.planners import best", "report must not import planners"),
        ("solve", "import lowtide.api", "solve must not import api"),
        ("solve", "import torch", "without torch"),
        ("capture", "from lowtide.apply.emit import emit", "capture must not import apply"),
        ("capture", "from ..measure import live", "capture must not import measure"),
        ("capture", "from lowtide import Plan", "lowtide.Plan, which is in no room"),
        ("captured", "from lowtide.capture.joint import capture", "captured must not import capture"),
        ("apply", "from lowtide.capture import step", "apply must not import capture"),
        ("apply", "from lowtide.fitted import Fitted", "apply must not import fitted"),
        ("apply", "import torch\ntorch._C._x()", "line 2: torch._C._x is private"),
        ("measure", "from torch._ops import OpOverload", "torch._ops.OpOverload, which is private"),
        ("measure", "from torch.fx.graph import _BoxedCodeGen", "which is private"),
        (
            "measure",
            "def f():\n    import torch.optim.optimizer as o\n    o._hooks()",
            "torch.optim.optimizer._hooks is",
        ),
        ("measure", "from torch import fx as g\ng._pytree.x", "torch.fx._pytree.x is private"),
        ("fitted", "from torch.utils._pytree import tree_leaves", "which is private"),
        ("integrations", "from lowtide.fitted import Fitted", "integrations must not import fitted"),
        ("_compat", "from lowtide.captured import Captured", "_compat must not import captured"),
    ],
)
def test_every_breach_is_found(room: str, text: str, found: str) -> None:
    assert any(found in breach for breach in breaches(room, text)), list(breaches(room, text))


@pytest.mark.parametrize(
    ("room", "text"),
    [
        ("planners", "import numpy as np\nfrom lowtide.program import Program\nfrom lowtide.planners.step import Step"),
        ("planners", "import scipy._lib"),
        ("api", "from lowtide.capture import step\nfrom lowtide.planners import greedy\nimport torch"),
        ("solve", "from lowtide.planners import best\nfrom lowtide import referee"),
        (
            "capture",
            "from lowtide import _compat\nimport torch\ntorch.fx.Graph()\ntorch.__version__\ntorch.ops.aten._softmax",
        ),
        ("_compat", "from torch._C import DispatchKey\nimport torch\ntorch._C.x"),
        ("__init__", "def f():\n    from lowtide import api"),
    ],
)
def test_what_is_allowed_is_no_breach(room: str, text: str) -> None:
    assert list(breaches(room, text)) == []


IMPORT = """
import sys, time
begin = time.process_time()
import numpy
middle = time.process_time()
import lowtide
print(middle - begin, time.process_time() - middle, "torch" in sys.modules)
"""


def test_importing_lowtide_imports_no_torch_and_is_quick() -> None:
    """Quick beyond numpy, whose own import is not ours to shorten."""
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
    _, seconds, torch = done.stdout.split()
    assert torch == "False"
    assert float(seconds) < 0.3


def test_a_call_is_a_call_whatever_was_imported_before() -> None:
    """`apply` and `plan` are calls, and the names of a room and of a module too."""
    text = (
        "import lowtide.apply.emit, lowtide.fitted, lowtide.plan, lowtide\n"
        "assert callable(lowtide.apply) and callable(lowtide.plan), (lowtide.apply, lowtide.plan)"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
