"""Where in the user's code a node of a captured graph comes from."""

from __future__ import annotations

import re

from torch import fx

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def where(node: fx.Node) -> str:
    """`h.3.mlp (model.py:212)`: the module and the innermost source line, as far as they are known."""
    module, line = _module(node), _line(node)
    if module and line:
        return f"{module} ({line})"
    return module or line


def _line(node: fx.Node) -> str:
    frames = [frame for frame in _FRAME.findall(node.meta.get("stack_trace") or "") if frame[2] != "_lowtide_call"]
    if not frames:
        return ""
    path, line, _ = frames[-1]
    return f"{path.rsplit('/', 1)[-1]}:{line}"


def _module(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    path, _ = list(stack.values())[-1]
    return re.sub(r"^L\['[a-z]+'\](\.__self__)?\.?", "", str(path))
