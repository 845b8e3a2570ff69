"""What a compiled step holds, read from the code that Inductor wrote for it.

Inductor's code allocates every buffer by name, reuses it by name, and deletes names as soon as it can. That is all that
is needed: the code is carried out here with tensors of no memory, its kernels left out, and every storage is counted
from the line that makes it to the line that lets go of its last name. Nothing is compiled or run for it, and it works
the same for code that came out of a cache.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from lowtide.allocator import charged
from lowtide.errors import UnsupportedModel

# What allocates, in all of Inductor's code for CPUs and GPUs.
_ALLOCATES = "empty_strided"
_LIBRARIES = ("torch.ops.", "extern_kernels.", "aten.")


class Blank:
    """A storage of a number of bytes that is not there."""

    def __init__(self, size: int) -> None:
        self.size = size


@dataclass(frozen=True, slots=True)
class View:
    """A tensor of no memory: its shape, on a blank storage."""

    block: Blank
    tensor: torch.Tensor


@dataclass
class Ledger:
    """Bytes alive, storage by storage.

    kind   of the device, whose allocator counts
    now    bytes alive
    peak   the most so far
    at     the call at which that was; empty until the call comes for which there was allocated
    """

    kind: str = "cpu"
    now: int = 0
    peak: int = 0
    at: str = ""
    _names: Counter[Blank] = field(default_factory=Counter)

    def name(self, call: str) -> None:
        """A call for which everything before was allocated; checks that Inductor writes are none."""
        if not self.at and not call.startswith("assert_"):
            self.at = call.removesuffix(".run")

    def hold(self, value: Any, line: str = "") -> None:
        """One more name for every storage in a value."""
        for block in _blocks(value):
            self._names[block] += 1
            if self._names[block] == 1:
                self.now += charged(block.size, self.kind)
        if self.now > self.peak:
            self.peak, self.at = self.now, line

    def drop(self, value: Any) -> None:
        """One name less."""
        for block in _blocks(value):
            self._names[block] -= 1
            if self._names[block] == 0:
                del self._names[block]
                self.now -= charged(block.size, self.kind)


def blank(like: Any) -> Any:
    """A tensor of no memory like the given one, on a storage of its own; what is no tensor stays as it is."""
    if not isinstance(like, torch.Tensor):
        return like
    tensor = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="meta")
    return View(Blank(tensor.untyped_storage().nbytes()), tensor)


def carry_out(code: str, arguments: Sequence[Any], ledger: Ledger) -> list[Any]:
    """What the code returns for these arguments, whose names it takes over; what it returns stays held."""
    return _Run(ledger, list(arguments)).body(_call(code))


def _call(code: str) -> list[ast.stmt]:
    """The body of the function `call` of Inductor's module."""
    found = [n for n in ast.walk(ast.parse(code)) if isinstance(n, ast.FunctionDef) and n.name == "call"]
    if len(found) != 1:
        raise UnsupportedModel(
            f"Inductor wrote {len(found)} functions named call where Lowtide reads one (a C++ wrapper, or graph "
            "partitions for CUDA graphs): leave cpp_wrapper and CUDA graphs off"
        )
    return found[0].body


class _Run:
    def __init__(self, ledger: Ledger, arguments: list[Any]) -> None:
        self.ledger = ledger
        self.arguments = arguments
        self.names: dict[str, Any] = {}

    def body(self, statements: Sequence[ast.stmt]) -> list[Any]:
        for statement in _flat(statements):
            if isinstance(statement, ast.Return):
                return self._return(statement)
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                self.ledger.name(ast.unparse(statement.value.func))
            if isinstance(statement, ast.Assign):
                self._assign(statement)
            elif isinstance(statement, ast.Delete):
                for target in statement.targets:
                    if isinstance(target, ast.Name) and target.id in self.names:
                        self.ledger.drop(self.names.pop(target.id))
        raise UnsupportedModel("Inductor's code ends without returning anything, so Lowtide cannot say what it holds")

    def _return(self, statement: ast.Return) -> list[Any]:
        value = statement.value
        elements = value.elts if isinstance(value, (ast.Tuple, ast.List)) else [value]
        results = [self._value(element) for element in elements if element is not None]
        for result in results:
            self.ledger.hold(result, "return")
        for name in list(self.names):
            self.ledger.drop(self.names.pop(name))
        return results

    def _assign(self, statement: ast.Assign) -> None:
        target = statement.targets[0]
        if isinstance(target, (ast.Tuple, ast.List)):
            if not (isinstance(statement.value, ast.Name) and statement.value.id == "args"):
                return
            for element, argument in zip(target.elts, self.arguments, strict=True):
                assert isinstance(element, ast.Name)
                self.names[element.id] = argument  # Its storage is held by the name that the caller gave up.
            return
        if not isinstance(target, ast.Name):
            return
        value = self._value(statement.value)
        self.ledger.hold(value, self._maker(statement.value))
        if target.id in self.names:
            self.ledger.drop(self.names[target.id])
        self.names[target.id] = value

    def _maker(self, expression: ast.expr) -> str:
        """The call of a library that returns its results; empty where memory is allocated for a call to come."""
        name = ast.unparse(expression.func) if isinstance(expression, ast.Call) else ""
        return name.removesuffix(".default") if name.startswith(_LIBRARIES) else ""

    def _value(self, expression: ast.expr) -> Any:
        if isinstance(expression, ast.Name):
            return self.names.get(expression.id)
        if isinstance(expression, ast.Subscript):
            parts = self._value(expression.value)
            place = ast.literal_eval(expression.slice)
            return parts[place] if isinstance(parts, (tuple, list)) and isinstance(place, int) else None
        if isinstance(expression, (ast.Tuple, ast.List)):
            return tuple(self._value(element) for element in expression.elts)
        if isinstance(expression, ast.Call):
            return self._made(expression)
        return None

    def _made(self, call: ast.Call) -> Any:
        name = ast.unparse(call.func)
        if name.startswith(_ALLOCATES):
            shape, stride, dtype = (self._literal(argument) for argument in call.args[:3])
            return blank(torch.empty_strided(shape, stride, dtype=dtype, device="meta"))
        if name == "reinterpret_tensor":
            source = self._value(call.args[0])
            if not isinstance(source, View):
                return None
            shape, stride = (self._literal(argument) for argument in call.args[1:3])
            tensor = torch.empty_strided(shape, stride, dtype=source.tensor.dtype, device="meta")
            return View(source.block, tensor)
        if name.startswith(_LIBRARIES):
            return self._library(name, call)
        if name == "alloc_from_pool":
            raise UnsupportedModel("Inductor's memory_planning packs buffers into pools; leave it off")
        return None

    def _library(self, name: str, call: ast.Call) -> Any:
        """What a call of a library returns: its own shapes, on storages of their own where it makes any."""
        function: Any = torch.ops
        path = name.split(".")
        path = ["aten", *path[1:]] if path[0] in ("extern_kernels", "aten") else path[2:]
        for part in path:
            function = getattr(function, part)
        given: dict[int, Blank] = {}

        def real(expression: ast.expr) -> Any:
            value = self._operand(expression)
            for view in _views(value):
                given[_key(view.tensor)] = view.block
            return _tensors(value)

        args = [real(argument) for argument in call.args]
        kwargs = {keyword.arg: real(keyword.value) for keyword in call.keywords if keyword.arg is not None}
        if "out" in kwargs:
            return None
        try:
            return _as_views(function(*args, **kwargs), given)
        except NotImplementedError as error:
            raise UnsupportedModel(
                f"{name} cannot tell the shapes of its results, so Lowtide cannot say what code that calls it holds: "
                "give the operator a kernel for the meta device (torch.library.register_fake)"
            ) from error

    def _operand(self, expression: ast.expr) -> Any:
        """An argument of a call: a tensor, a list with tensors, or a constant."""
        if isinstance(expression, (ast.Tuple, ast.List)):
            return [self._operand(element) for element in expression.elts]
        if isinstance(expression, (ast.Name, ast.Call, ast.Subscript)):
            value = self._value(expression)
            if value is not None or (isinstance(expression, ast.Name) and expression.id in self.names):
                return value
        return self._literal(expression)

    def _literal(self, expression: ast.expr) -> Any:
        """A constant in the code: numbers, shapes, dtypes, devices."""
        return eval(ast.unparse(expression), {"torch": torch, "device": torch.device, "inf": float("inf")})


def _flat(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in statements:
        if isinstance(statement, ast.With):
            yield from _flat(statement.body)
        else:
            yield statement


def _blocks(value: Any) -> Iterator[Blank]:
    return (view.block for view in _views(value))


def _views(value: Any) -> Iterator[View]:
    if isinstance(value, View):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _views(item)


def _tensors(value: Any) -> Any:
    if isinstance(value, View):
        return value.tensor
    if isinstance(value, (tuple, list)):
        return [_tensors(item) for item in value]
    return value


def _as_views(value: Any, given: dict[int, Blank]) -> Any:
    if isinstance(value, torch.Tensor):
        key = _key(value)
        if key not in given:
            given[key] = Blank(value.untyped_storage().nbytes())
        return View(given[key], value)
    if isinstance(value, (tuple, list)):
        return tuple(_as_views(item, given) for item in value)
    return value


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
