"""Every private function of PyTorch that Lowtide touches, in one place, for the releases it supports."""

from __future__ import annotations

import contextlib
import dis
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from types import CodeType
from typing import Any

import torch
import torch.fx
import torch.optim.optimizer as torch_optimizer
from torch._C import DispatchKey
from torch._dynamo import config as dynamo_config
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._inductor.custom_graph_pass import CustomPartitionerFn
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch._ops import OpOverload as OpOverload
from torch._subclasses.fake_tensor import FakeCopyMode as FakeCopyMode
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor as FunctionalTensor
from torch.fx.graph import _BoxedCodeGen
from torch.fx.node import _side_effectful_functions
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass as is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves as tree_leaves

# Python kernels that only make tracing possible or give views; the rest replace the kernels that eager PyTorch runs.
_TRACING_NEEDS = {
    "aten::broadcast_tensors",
    "aten::empty",
    "aten::one_hot",
    "aten::pad_sequence",
    "aten::tensor_split",
    "aten::unsafe_chunk",
}
_COMPOSITE = DispatchKey.CompositeImplicitAutograd
_REPLACING_KEYS = (DispatchKey.Autograd, _COMPOSITE)
_tracing = threading.RLock()

# A gradient that enters a backward function can be freed before the function returns from this release on.
INCOMING_GRADIENTS_ARE_FREED = hasattr(torch.autograd.Function, "boxed_grads_call")


def _in_the_way(op: Any) -> list[DispatchKey]:
    """Where an operator has Python kernels that tracing would take and eager PyTorch does not.

    A Python kernel for the meta device hides, with no gradient, what a C++ operator is made of.
    """
    if op._schema.name in _TRACING_NEEDS:
        return []
    keys = [key for key in _REPLACING_KEYS if key in op.py_kernels]
    if DispatchKey.Meta in op.py_kernels and torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), _COMPOSITE):
        keys.append(DispatchKey.Meta)
    return keys


def _replaced_ops() -> list[Any]:
    """ATen operators for which tracing would take a Python kernel where eager PyTorch takes its own."""
    found = []
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        if not hasattr(packet, "overloads"):
            continue
        for overload in packet.overloads():
            op = getattr(packet, overload)
            if _in_the_way(op):
                found.append(op)
    return found


@contextlib.contextmanager
def eager_kernels(chosen: Mapping[Any, Callable[..., Any]] | None = None) -> Iterator[None]:
    """Within it, tracing records the kernels that eager PyTorch would run, and for some operators those `chosen`.

    PyTorch registers Python decompositions for dropout, LSTM, interpolation, cuDNN's batch norm and others that tracing
    takes instead of the C++ kernels; their results differ in the last bit, in memory or in speed. They are put back on
    the way out.
    """
    chosen = chosen or {}
    with _tracing, _grouped_products_of_any_type():
        before = {op: dict(op.py_kernels) for op in (*_replaced_ops(), *chosen)}
        for op in before:
            for key in _in_the_way(op):
                del op.py_kernels[key]
            op._dispatch_cache.clear()
        for op, kernel in chosen.items():
            op.py_kernels[_COMPOSITE] = kernel
        try:
            yield
        finally:
            for op, kernels in before.items():
                op.py_kernels.clear()
                op.py_kernels.update(kernels)
                op._dispatch_cache.clear()


@contextlib.contextmanager
def _grouped_products_of_any_type() -> Iterator[None]:
    """Within it, `torch._grouped_mm` is traced in any precision: its kernels take what its shapes are refused for."""
    from torch import _meta_registrations as shapes

    plain = shapes._meta_grouped_mm_common

    def common(mat_a: torch.Tensor, mat_b: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if mat_a.dtype is not mat_b.dtype or mat_a.dtype not in (torch.float32, torch.float16):
            return plain(mat_a, mat_b, *args, **kwargs)
        return plain(mat_a.bfloat16(), mat_b.bfloat16(), *args, **kwargs).to(mat_a.dtype)

    shapes._meta_grouped_mm_common = common
    try:
        yield
    finally:
        shapes._meta_grouped_mm_common = plain


@contextlib.contextmanager
def _batch_norms_kept() -> Iterator[None]:
    """Within it, a batch norm whose result nobody reads stays in the graph: it moves its running statistics.

    Its schema does not say so, and the tracer would take it for dead code.
    """
    aten = torch.ops.aten
    norms = {aten.native_batch_norm.default, aten.cudnn_batch_norm.default, aten.miopen_batch_norm.default}
    added = norms - _side_effectful_functions
    with _tracing:
        _side_effectful_functions.update(added)
        try:
            yield
        finally:
            _side_effectful_functions.difference_update(added)


def tracing_options() -> contextlib.AbstractContextManager[Any]:
    """Dynamo's settings for a call that may trace: recurrent modules are traced, and nothing is given up in silence.

    Dynamo counts compilations by code object, over all models that share it, so its own limit is out of the way. It
    writes some calls in others (`add_` with alpha, `addcdiv_` with value), whose results differ in the last bit.
    """
    return dynamo_config.patch(
        allow_rnn=True,
        trace_numpy=False,
        enable_dynamo_decompositions=False,
        recompile_limit=10_000,
        accumulated_recompile_limit=100_000,
        fail_on_recompile_limit_hit=True,
        suppress_errors=False,
    )


class _Answers(dict[Any, Any]):
    """Dynamo's answers to code that asks whether it is being compiled, with those to other code than PyTorch's own
    worked out from the stack of functions being traced.
    """

    def __init__(self, plain: Mapping[Any, Any], answer: Callable[[list[CodeType]], bool]) -> None:
        super().__init__(plain)
        self._answer = answer

    def __getitem__(self, asked: Any) -> Any:
        plain = super().__getitem__(asked)
        translator = sys._getframe(1).f_locals.get("tx")
        if plain is not True or translator is None or _is_torch(translator):
            return plain
        return self._answer(_stack(translator))


def _is_torch(translator: Any) -> bool:
    return str(translator.f_globals.get("__name__", "torch")).partition(".")[0] == "torch"


def _stack(translator: Any) -> list[CodeType]:
    """The functions being traced, outermost first."""
    codes = []
    while translator is not None:
        codes.append(translator.f_code)
        translator = getattr(translator, "parent", None)
    return codes[::-1]


@contextlib.contextmanager
def answering(answer: Callable[[list[CodeType]], bool]) -> Iterator[None]:
    """Within it, traced code that asks whether it is being compiled is told `answer(stack)`: the code objects of the
    functions being traced, outermost first. PyTorch's own code is told so; no CUDA graph is being recorded.
    """
    from torch._dynamo.trace_rules import get_torch_obj_rule_map
    from torch._dynamo.variables import ConstantVariable
    from torch._dynamo.variables import torch as traced

    plain = traced.tracing_state_functions
    kind = traced.TorchInGraphFunctionVariable
    found = (getattr(module, "is_current_stream_capturing", None) for module in (torch.cuda, torch.xpu))
    recording = [function for function in found if function is not None]
    traced.tracing_state_functions = lambda: _Answers(plain(), answer)
    try:
        with (
            _added(kind._get_handlers(), dict.fromkeys(recording, lambda *_: ConstantVariable.create(False))),
            _added(get_torch_obj_rule_map(), dict.fromkeys(recording, kind)),
        ):
            yield
    finally:
        traced.tracing_state_functions = plain


@contextlib.contextmanager
def _added(table: dict[Any, Any], entries: Mapping[Any, Any]) -> Iterator[None]:
    """Within it, the table has these entries too."""
    before = {key: table[key] for key in entries if key in table}
    table.update(entries)
    try:
        yield
    finally:
        for key in entries:
            del table[key]
        table.update(before)


# Methods of loggers that return nothing; `warning_once` and its like are what libraries add to them.
_LOGGING = {"debug", "info", "warning", "warn", "error", "critical", "log", "debug_once", "info_once", "warning_once"}


@contextlib.contextmanager
def logging_afterwards() -> Iterator[None]:
    """Within it, a call of a logger with constants does not end the graph: it is made when the graph has run.

    It is Dynamo's own way of reordering calls of `print`, which it has for functions but not for methods of loggers.
    """
    from torch._dynamo.source import AttrSource
    from torch._dynamo.variables import ConstantVariable, misc

    plain = misc.LoggingLoggerVariable.call_method

    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        constant = not kwargs and all(argument.is_python_constant() for argument in args)
        if name not in _LOGGING or not constant or self.source is None:
            return plain(self, tx, name, args, kwargs)
        method = misc.DebuggingVariable(getattr(self.value, name), source=AttrSource(self.source, name))
        tx.output.root_tx.debug_locals.append((method, list(args)))
        return ConstantVariable.create(None)

    misc.LoggingLoggerVariable.call_method = call_method
    try:
        yield
    finally:
        misc.LoggingLoggerVariable.call_method = plain


def argument_of(placeholder: torch.fx.Node) -> torch.Tensor | None:
    """The tensor that an input of a graph of Dynamo's stands for in the call being traced."""
    given = placeholder.meta.get("grapharg")
    example = getattr(given, "example", None)
    return example if isinstance(example, torch.Tensor) else None


def source_of(placeholder: torch.fx.Node) -> Any:
    """Where an input of a graph of Dynamo's comes from."""
    return placeholder.meta["grapharg"].source


@contextlib.contextmanager
def deciding_branches(decided: Callable[[torch.fx.Node], Any]) -> Iterator[None]:
    """Within it, a branch on a tensor does not end the graph where `decided(node)` says what it comes to.

    That is an object with `value`, the `source` of the argument that it depends on (or None), and `decide`, which
    Dynamo's guards ask in calls to come.
    """
    from torch._dynamo import symbolic_convert
    from torch._dynamo.guards import install_guard
    from torch._dynamo.variables import ConstantVariable, TensorVariable

    def guard(decision: Any) -> Callable[[Any, Any], None]:
        def create(builder: Any, guard: Any) -> None:
            manager = builder.get_guard_manager(guard)
            described = [f"a branch that depends on {guard.name} is {decision.value}"]
            ask = lambda argument: decision.decide(argument) == decision.value  # noqa: E731
            try:
                manager.add_lambda_guard(ask, described, guard.user_stack)
            except TypeError:  # Releases without the third argument.
                manager.add_lambda_guard(ask, described)

        return create

    def deciding(plain: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def jump(self: Any, instruction: Any) -> Any:
            value = self.stack[-1]
            if type(value) is TensorVariable:
                decision = decided(value.as_proxy().node)
                if decision is not None:
                    if decision.source is not None:
                        install_guard(decision.source.make_guard(guard(decision)))
                    self.stack[-1] = ConstantVariable.create(decision.value)
            return plain(self, instruction)

        return jump

    jumps = [code for name, code in dis.opmap.items() if "JUMP" in name and ("IF_TRUE" in name or "IF_FALSE" in name)]
    found = (getattr(kind, "dispatch_table", None) for kind in vars(symbolic_convert).values())
    tables = [table for table in found if isinstance(table, list)]
    before = [(table, list(table)) for table in tables]
    for table in tables:
        for code in jumps:
            table[code] = deciding(table[code])
    try:
        yield
    finally:
        for table, plain in before:
            table[:] = plain


@dataclass(frozen=True)
class Break:
    """Where the front end could not go on.

    reason   why, one line
    stack    file, name of the functions being traced there, outermost first
    line     where in the innermost of them
    """

    reason: str
    stack: tuple[tuple[str, str], ...]
    line: int


def _breaks(reasons: Sequence[Any]) -> list[Break]:
    return [_break(reason.reason, reason.user_stack) for reason in reasons]


def _break(reason: str, stack: Iterable[Any]) -> Break:
    frames = list(stack)
    places = tuple((frame.filename, frame.name) for frame in frames)
    return Break(reason.strip().splitlines()[0], places, frames[-1].lineno or 0 if frames else 0)


class _Within:
    """Dynamo's conversion of one frame, carried out within a context manager made from the frame's code, and once more
    as long as `again` says so of where it broke. Nothing of the frame has run by then.
    """

    def __init__(
        self,
        convert: Any,
        within: Callable[[CodeType], contextlib.AbstractContextManager[Any]],
        again: Callable[[list[Break]], bool],
    ) -> None:
        self._convert = convert
        self._within = within
        self._again = again
        # Plain attributes: Dynamo's evaluator reads them while it is at work, when no Python code may run.
        self._torchdynamo_orig_backend = convert._torchdynamo_orig_backend
        self._clone_with_backend = convert._clone_with_backend

    def __call__(self, frame: Any, *args: Any, **kwargs: Any) -> Any:
        from torch._dynamo import utils
        from torch._dynamo.exc import TorchDynamoException

        with self._within(frame.f_code):
            while True:
                before, counts = len(utils.graph_break_reasons), utils.counters["graph_break"].copy()
                try:
                    converted = self._convert(frame, *args, **kwargs)
                except TorchDynamoException as error:
                    if not self._again([_break(str(error), getattr(error, "real_stack", None) or ())]):
                        raise
                else:
                    if not self._again(_breaks(utils.graph_break_reasons[before:])):
                        return converted
                del utils.graph_break_reasons[before:]
                utils.counters["graph_break"] = counts


def compile_frames(
    function: Callable[..., Any],
    backend: Callable[..., Any],
    within: Callable[[CodeType], contextlib.AbstractContextManager[Any]],
    again: Callable[[list[Break]], bool],
) -> Callable[..., Any]:
    """What `torch.compile` makes of a function, with every frame traced within `within(code)`, and traced again while
    `again(breaks)` says so of where it broke.

    Only Dynamo knows when it must trace: shapes, modes, types and whatever else its guards look at may have changed.
    """
    import torch._dynamo

    context = torch._dynamo.optimize(backend, dynamic=False)
    catching = context.callback
    catching._torchdynamo_orig_backend = _Within(catching._torchdynamo_orig_backend, within, again)
    compiled: Callable[..., Any] = context(function)
    return compiled


def refuse_double_backward(outputs: Iterable[Any], refuse: Callable[..., Any]) -> None:
    """Have the gradients that AOTAutograd's function for these outputs makes under `create_graph` pass through
    `refuse`.
    """
    for output in outputs:
        node = output.grad_fn if isinstance(output, torch.Tensor) else None
        for each in (node, *(following for following, _ in node.next_functions)) if node is not None else ():
            kind: Any = getattr(each, "_forward_cls", None)
            plain = getattr(kind, "_double_backward", None)
            if plain is not None and not hasattr(plain, "refused"):
                kind._double_backward = staticmethod(_refused(plain, refuse))
                return


def _refused(plain: Callable[..., Any], refuse: Callable[..., Any]) -> Callable[..., Any]:
    def double_backward(*args: Any) -> Any:
        return refuse(plain(*args))

    double_backward.refused = True  # type: ignore[attr-defined]
    return double_backward


def compile_joint(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    partition: Callable[..., tuple[torch.fx.GraphModule, torch.fx.GraphModule]],
    inference: Callable[[torch.fx.GraphModule], None],
    backward: Callable[[torch.fx.GraphModule], Callable[..., Any]],
    chosen: Mapping[Any, Callable[..., Any]] | None = None,
) -> Callable[..., Any]:
    """AOTAutograd's callable for a graph of Dynamo's, its joint graph split by `partition(joint, outputs)`.

    `inference` is called with the forward graph instead where nothing in it needs a gradient; `backward` makes the
    boxed function of the backward module; `chosen` are kernels for some operators, see `eager_kernels`.
    """

    def split(
        joint: torch.fx.GraphModule, _: Sequence[Any], *, num_fwd_outputs: int, **__: Any
    ) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
        return partition(joint, num_fwd_outputs)

    def forward_only(module: torch.fx.GraphModule, example: Sequence[Any]) -> Callable[..., Any]:
        inference(module)
        return boxed(module, example)

    backend = aot_autograd(
        fw_compiler=boxed,
        bw_compiler=lambda module, _: backward(module),
        inference_compiler=forward_only,
        partition_fn=split,
    )
    # Fake tensors from the cache do not share storages where the first ones of their kind did.
    uncached = dynamo_config.patch(fake_tensor_cache_enabled=False)
    with eager_kernels(chosen), _batch_norms_kept(), uncached, functorch_config.patch(donated_buffer=False):
        return backend(graph, inputs)


def boxed(module: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
    """The module's generated code as a function of one list, which it empties, so that it alone holds its inputs."""
    module.graph.set_codegen(_BoxedCodeGen())
    module.recompile()
    forward = module.forward

    def run(args: list[Any]) -> Any:
        return forward(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def output_descriptions(joint: torch.fx.Graph) -> list[Any]:
    """AOTAutograd's description of each output of a joint graph."""
    output = joint.find_nodes(op="output")[0]
    return list(output.meta["desc"])


def saved_description(position: int) -> Any:
    """AOTAutograd's description of a value saved for backward."""
    from torch._functorch._aot_autograd.descriptors import SavedForBackwardsAOTOutput

    return SavedForBackwardsAOTOutput(position)


def mutated_input(description: Any) -> Any | None:
    """The description of the input that an output of the joint graph is written back into, or None."""
    from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput

    return description.mutated_input if isinstance(description, InputMutationAOTOutput) else None


def plain_tensors() -> contextlib.AbstractContextManager[Any]:
    """Within it, calls work on real tensors though something is being traced."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def subgraph_reason(graph: torch.fx.GraphModule) -> Any:
    """Why Dynamo ended a graph where it did: an object with `reason`, `user_stack` and `graph_break`."""
    return graph.compile_subgraph_reason


def graph_breaks() -> dict[str, int]:
    """Why Dynamo broke or gave up graphs, so far in this process, and how often."""
    import torch._dynamo

    return dict(torch._dynamo.utils.counters["graph_break"])


def graph_break_reasons(before: Mapping[str, int]) -> list[str]:
    """Why Dynamo broke or gave up graphs since the counts were `before`; one line each."""
    return [reason.splitlines()[0] for reason, count in graph_breaks().items() if count > before.get(reason, 0)]


def forget(codes: Iterable[CodeType]) -> None:
    """Drop what Dynamo compiled of some code."""
    import torch._dynamo.eval_frame

    for code in codes:
        torch._dynamo.eval_frame.reset_code(code)


def tangent_outputs(joint: torch.fx.Graph) -> list[int]:
    """The output that each incoming gradient of a joint graph belongs to, in the order of the gradients."""
    outputs = output_descriptions(joint)
    tangents = [node for node in joint.find_nodes(op="placeholder") if "tangents" in str(node.target)]
    return [outputs.index(node.meta["desc"].output) for node in tangents]


def backward_node(outputs: Any) -> Any | None:
    """The autograd node of the AOTAutograd function that made some outputs; None where none needs a gradient."""
    for output in outputs:
        node = output.grad_fn if isinstance(output, torch.Tensor) else None
        # An output that is a view is viewed again outside the function; its own node is a step or two further.
        for _ in range(3):
            if node is None or hasattr(node, "_aot_id") or node.name() == "CompiledFunctionBackward":
                break
            node = next((following for following, _ in node.next_functions), None)
        if node is not None and node.name() == "CompiledFunctionBackward":
            return node
    return None


def keeps_graph() -> bool:
    """Whether the backward pass under way was asked to keep what is saved."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def saved_by_hooks(node: Any) -> bool:
    """Whether an autograd node keeps something through hooks (a checkpoint's, say), which make it when it is read."""
    for name in dir(node):
        if name.startswith("_raw_saved_"):
            raw = getattr(node, name)
            for each in raw if isinstance(raw, (tuple, list)) else (raw,):
                if getattr(each, "unpack_hook", None) is not None:
                    return True
    return False


def without_autocast() -> contextlib.AbstractContextManager[Any]:
    """Within it, no operator is cast, whatever `torch.autocast` says."""
    return torch._C._DisableAutocast()


def when_backward_ends(function: Callable[[], Any]) -> None:
    """Have a function called at the end of the backward pass under way."""
    torch.autograd.Variable._execution_engine.queue_callback(function)


def below_autograd() -> contextlib.AbstractContextManager[Any]:
    """Within it, calls go to the kernels without autograd's looking on."""
    return torch._C._AutoDispatchBelowAutograd()


def pause_device(seconds: float) -> None:
    """Have the GPU do nothing for about so long, while calls queue up behind."""
    torch.cuda._sleep(int(seconds * 1.8e9))


def convolutions_in_tf32() -> bool:
    """Whether cuDNN may round what it multiplies to TF32."""
    return _setting(lambda: torch.backends.cudnn.allow_tf32, lambda: torch.backends.cudnn.conv.fp32_precision) not in (
        False,
        "ieee",
    )


def numeric_settings(kind: str) -> str:
    """In words, all settings by which PyTorch chooses kernels on this kind of device, and its version."""
    backends = torch.backends
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul": _setting(torch.get_float32_matmul_precision, lambda: backends.cuda.matmul.fp32_precision),
    }
    if kind == "cuda":
        matmul = backends.cuda.matmul
        found |= {
            "cuda": torch.version.cuda,
            "cudnn": backends.cudnn.version() if backends.cudnn.enabled else "off",
            "benchmark": backends.cudnn.benchmark,
            "cudnn deterministic": backends.cudnn.deterministic,
            "conv tf32": convolutions_in_tf32(),
            "reduced": (matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction),
        }
    else:
        found["mkldnn"] = backends.mkldnn.enabled
    return ", ".join(f"{name} {value}" for name, value in found.items())


def _setting(old: Callable[[], Any], new: Callable[[], Any]) -> Any:
    """A setting that has two names, of which the first must not be read where the second was written."""
    try:
        return old()
    except RuntimeError:
        return new()


def native_parameter_types() -> list[type]:
    """The types of parameter that optimizers take their foreach kernels for: PyTorch's own list."""
    return torch_optimizer._foreach_supported_types


def step_hooks_of_all_optimizers() -> tuple[dict[int, Any], dict[int, Any]]:
    """The hooks called before and after any optimizer's step: PyTorch's own dictionaries."""
    return torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks


def plain_partition(
    joint: torch.fx.GraphModule, inputs: Sequence[Any], **given: Any
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """The forward and backward modules that `torch.compile` would compile, its activation_memory_budget left alone.

    That budget would cut elsewhere, and may make random numbers again that differ.
    """
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    with functorch_config.patch(activation_memory_budget=1.0):
        return min_cut_rematerialization_partition(joint, inputs, **given)


def never_recompute(node: torch.fx.Node) -> None:
    """Have PyTorch's partitioner save a node, or what is made of it, and never make it again."""
    from torch.utils.checkpoint import CheckpointPolicy

    node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def is_unchecked(node: torch.fx.Node) -> bool:
    """Whether autograd is not to look whether a saved node has been written to since."""
    return bool(node.meta.get("saved_tensor_with_no_vc_check", False))


def saved_descriptions(nodes: Sequence[torch.fx.Node]) -> list[Any]:
    """AOTAutograd's descriptions of values saved for backward."""
    from torch._functorch._aot_autograd import descriptors

    plain = descriptors.SavedForBackwardsAOTOutput
    unchecked = getattr(descriptors, "SavedForBackwardsNoVcCheckAOTOutput", plain)
    return [(unchecked if is_unchecked(node) else plain)(i) for i, node in enumerate(nodes)]


def copy_graph(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A copy of a graph of Dynamo's, with all that AOTAutograd looks at; a compiler may change it."""
    import copy

    made = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
    made.meta = dict(graph.meta)
    for name in ("_param_name_to_source", "compile_subgraph_reason"):
        if hasattr(graph, name):
            object.__setattr__(made, name, getattr(graph, name))
    for theirs, mine in zip(graph.graph.nodes, made.graph.nodes, strict=True):
        if hasattr(theirs, "_dynamo_source"):
            mine._dynamo_source = theirs._dynamo_source
    return made


class _Partitioner(CustomPartitionerFn):
    """Inductor's hook for a partitioner: it is known to caches by its fingerprint, and to pickle by that alone."""

    def __init__(self, fingerprint: str, partition: Callable[..., Any] | None = None) -> None:
        self.fingerprint = fingerprint
        self.partition = partition

    def __call__(
        self, joint: torch.fx.GraphModule, inputs: Sequence[Any], *, num_fwd_outputs: int, **given: Any
    ) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
        assert self.partition is not None
        modules: tuple[torch.fx.GraphModule, torch.fx.GraphModule] = self.partition(
            joint, num_fwd_outputs, lambda: plain_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **given)
        )
        return modules

    def uuid(self) -> str:
        return self.fingerprint

    def __reduce__(self) -> Any:
        return _Partitioner, (self.fingerprint,)


def compile_inductor(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    partition: Callable[..., tuple[torch.fx.GraphModule, torch.fx.GraphModule]],
    written: Callable[[str, str], None],
    fingerprint: str,
    options: Mapping[str, Any],
) -> Callable[..., Any]:
    """Inductor's callable for a graph of Dynamo's, its joint graph split by `partition(joint, outputs, plain)`.

    `partition` is not called where nothing in the graph needs a gradient; `plain()` gives PyTorch's own two modules.
    `written(half, code)` gets the code of each half, "forward" or "backward", before this returns: Inductor would wait
    with backward until it first runs. `fingerprint` tells caches what `partition` does, besides what shows in its two
    modules. AOTAutograd's own cache looks at neither what is held elsewhere nor the device, so it is left out;
    Inductor's cache of what it made of the two modules stays.
    """
    from torch._guards import TracingContext, tracing
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    def inner(module: torch.fx.GraphModule, example: Sequence[Any], **given: Any) -> Any:
        made = compile_fx_inner(module, example, **given)
        written("backward" if given.get("is_backward") else "forward", str(getattr(made, "source_code", "")))
        return made

    # Partitions are for CUDA graphs only; some releases make them all the same, and the code is then in several pieces.
    patches = {"graph_partition": False, **options, "custom_partitioner_fn": _Partitioner(fingerprint, partition)}
    once = functorch_config.patch(enable_autograd_cache=False, force_non_lazy_backward_lowering=True)
    # Inductor's cache asks for the sizes that tracing has found to vary, and is left out where nobody can say.
    fake = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    known = [fake.from_tensor(x, static_shapes=True) if isinstance(x, torch.Tensor) else x for x in inputs]
    with _tracing, once, _reruns_in_turn(), tracing(TracingContext(fake)):
        compiled: Callable[..., Any] = compile_fx(graph, known, inner_compile=inner, config_patches=patches)
    return compiled


RUN = (
    "lowtide run"  # Key of a node's meta: the place in the plan of the run it belongs to, and whether that is a rerun.
)


@contextlib.contextmanager
def _reruns_in_turn() -> Iterator[None]:
    """Within it, Inductor's scheduler runs nothing again before the plan's turn for it.

    A rerun reads only what is kept, so it could run as early as anyone likes: Inductor fuses it with other copies, or
    with what reads the same, and its results are then held much too long. Here each waits for the last run of
    backward's own before it; the dependency orders, and keeps nothing alive.
    """
    from torch._inductor.scheduler import Scheduler

    plain = Scheduler.compute_dependencies

    def compute_dependencies(scheduler: Any) -> None:
        plain(scheduler)
        _order_reruns(scheduler.nodes)

    Scheduler.compute_dependencies = compute_dependencies
    try:
        yield
    finally:
        Scheduler.compute_dependencies = plain


def _order_reruns(nodes: Sequence[Any]) -> None:
    from torch._inductor.dependencies import WeakDep

    fake = {"is_fake": True} if "is_fake" in WeakDep.__dataclass_fields__ else {}
    last: Any = None
    for node in nodes:
        origins = getattr(node.node, "origins", ()) if node.node is not None else ()
        runs = [origin.meta[RUN] for origin in origins if RUN in getattr(origin, "meta", {})]
        if not runs:
            continue
        if not max(runs)[1]:
            last = node
        elif last is not None:
            for buffer in last.get_outputs()[:1]:
                node.add_fake_dep(WeakDep(buffer.get_name(), mutating_buf=node.get_name(), **fake))


def inductor_setting(name: str) -> Any:
    """What Inductor's configuration says at present, by a name with dots."""
    from torch._inductor import config

    return reduce(getattr, name.split("."), config)


def mode_options(mode: str) -> dict[str, Any]:
    """What a mode of `torch.compile` sets."""
    import torch._inductor

    return dict(torch._inductor.list_mode_options(mode))


def compiling_options() -> contextlib.AbstractContextManager[Any]:
    """Dynamo's settings for a call that may trace for Inductor: as plain `torch.compile` has them, but its limits on
    how often code is compiled, which count over all models, are out of the way, and nothing is given up in silence.
    """
    return dynamo_config.patch(
        recompile_limit=10_000,
        accumulated_recompile_limit=100_000,
        fail_on_recompile_limit_hit=True,
        suppress_errors=False,
    )
