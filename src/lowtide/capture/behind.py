"""What nodes of a graph are made from."""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx


def made_from(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes and all that they are made from."""
    found: set[fx.Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found
