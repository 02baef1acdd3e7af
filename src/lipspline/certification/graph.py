"""Bounds of any module that `torch.export` can trace: one rule for each operation, on the graph of what runs.

The module is copied, with the very weights it multiplies with, and traced for inputs of one shape. What does not depend
on the input is computed as torch computes it. The bound holds for inputs of this shape, in eval mode.
"""

import io
import logging
import operator
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.node import map_arg

from lipspline.certification import contractions, functions, moves  # noqa: F401 (they register rules)
from lipspline.certification.certificate import LayerBound
from lipspline.certification.flow import CHEAP, Flow, Multiple, joint_upper
from lipspline.certification.operations import NO_RULE, OPERATIONS, Call, applied
from lipspline.nn.fold import freeze

LeafBound = Callable[[str, nn.Module], LayerBound | None]
"""`(name, module)` -> the bound of a module that has a rule of its own here, or None to look into it."""

_Row = tuple[Any, str, str, Flow]  # an operation, its kind, the reason of its bound, and what it returns


class NoOperationRule(ValueError):
    """An operation of the network has no rule."""


def graph_bounds(model: nn.Module, example: Tensor, leaf: LeafBound) -> tuple[float, list[LayerBound], Tensor]:
    """A bound on the Lipschitz constant of a module for inputs with the shape of `example`, and where it comes from.

    Args:
        model: any module that takes one tensor and returns one, or several, which then count as one long vector.
        example: an input, with batch.
        leaf: gives the bounds of modules whose classes have rules that are not about their operations.

    Returns:
        The bound; a row for each operation that is more than a rearrangement, whose `upper` bounds everything from the
        network's input to there; and the output for the example.
    """
    frozen = freeze(model)
    output = _run(frozen, example)
    with _cut_leaves(frozen, example, leaf) as leaves:
        program = _traced(frozen, example, output)
    upper, rows = walked(program.graph, _constants(program), example, leaves)
    return upper, rows, output


def traced_with_constants(model: nn.Module, example: Tensor) -> tuple[Any, dict[Any, Any]]:
    """The program of a module with the weights that it multiplies with, and its constants by node."""
    frozen = freeze(model)
    program = _traced(frozen, example, _run(frozen, example))
    return program, _constants(program)


def walked(
    graph: torch.fx.Graph, values: dict[Any, Any], example: Tensor, leaves: dict[int, LayerBound]
) -> tuple[float, list[LayerBound]]:
    """The bound of a graph of operations, and its rows; `values` has the constants among its inputs, by node."""
    rows: list[_Row] = []
    result: Any = None
    with torch.no_grad():
        for node in graph.nodes:
            if node.op == "placeholder":
                if node not in values:
                    values[node] = Flow(tuple(example.shape), example.dtype, {-1: (Multiple(1.0), 1.0)})
            elif node.op == "output":
                result = map_arg(node.args[0], lambda n: values[n])
            elif node.op == "call_function":
                values[node] = _evaluated(node, values, rows, leaves)
            elif node.op != "get_attr":
                raise NoOperationRule(f"certify does not know the node {node.op} of a graph of torch.export.")
    flows = [flow for flow in flat(result) if isinstance(flow, Flow)]
    upper = joint_upper(flows) if len(flows) > 1 else flows[0].upper if flows else 0.0
    return upper, [_row(*row) for row in rows if _is_known(row[-1])]


def _is_known(flow: Flow) -> bool:
    """Whether the bound of a tensor was needed, or costs nothing: not that of a large convolution inside a product."""
    cheap = all(
        isinstance(m, Multiple) or "upper" in vars(m) or m.weight.numel() <= CHEAP for m, _ in flow.terms.values()
    )
    return "upper" in vars(flow) or cheap


def _row(node: Any, kind: str, reason: str, flow: Flow) -> LayerBound:
    return LayerBound(_module_of(node), kind, reason, flow.upper)


def flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    return [x for v in value for x in flat(v)] if isinstance(value, (list, tuple)) else [value]


@torch.no_grad()
def _run(model: nn.Module, example: Tensor) -> Any:
    """What the module returns for the example; an error if it does not take it."""
    try:
        return model(example.clone())
    except NoOperationRule:
        raise
    except Exception as error:
        what = f"inputs of shape {tuple(example.shape)} and {example.dtype}"
        raise NoOperationRule(
            f"The model does not take {what} ({type(error).__name__}: {error}). Give input_shape, the shape of one "
            f"input without batch."
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Without warnings, and without what torch prints about a module that it traces or cannot trace."""
    handlers = list(logging.getLogger("torch").handlers)
    silent = logging.Filter("lipspline")
    for handler in handlers:
        handler.addFilter(silent)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(silent)


def _traced(model: nn.Module, example: Tensor, output: Any) -> Any:
    """The program of a module, without operations in place; it must compute `output`."""
    with quiet(), torch.no_grad():
        try:
            exported = torch.export.export(model, (example.clone(),), strict=False)
        except Exception as error:
            line = str(error).strip().splitlines()
            raise NoOperationRule(
                f"torch.export cannot trace this module ({type(error).__name__}: {line[0] if line else ''}), so that "
                f"certify cannot see what it computes. Branches that depend on values of tensors are the usual reason."
            ) from error
        _check_same(output, exported.module()(example.clone()))
        program = exported.run_decompositions({}) if _writes(exported) else exported
    signature = program.graph_signature
    changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if changed:
        raise NoOperationRule(
            f"The module changes its own state ({', '.join(map(str, changed))}) when it runs, so that it is another "
            f"function at each call."
        )
    return program


def _writes(program: Any) -> bool:
    """Whether an operation may write over a tensor; else rewriting the program, most of the time, is not needed."""
    called = [n.target for n in program.graph.nodes if n.op == "call_function" and n.target is not operator.getitem]
    return any(not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable for target in called)


def _check_same(here: Any, there: Any) -> None:
    """Refuse a module that runs something else when it is traced."""
    for x, y in zip(flat(here), flat(there), strict=True):
        if isinstance(x, Tensor) and not torch.allclose(x.double(), y.double(), rtol=1e-3, atol=1e-5, equal_nan=True):
            raise NoOperationRule(
                "The module computes something else when torch.export traces it than when it runs (it is random, or "
                "asks whether it is traced), so that what certify sees is not what runs."
            )


def _constants(program: Any) -> dict[Any, Any]:
    """The parameters, buffers and constants of a program, by their nodes."""
    signature = program.graph_signature
    stored = {**program.state_dict, **program.constants}
    kinds = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    values: dict[Any, Any] = {nodes[name]: stored[target] for name, target in kinds.items() if name in nodes}
    for node in nodes.values():
        if node not in values and node.name not in signature.user_inputs:
            raise NoOperationRule(f"certify does not know the input {node.name} of a graph of torch.export.")
    return values


def _evaluated(node: Any, values: dict[Any, Any], rows: list[_Row], leaves: dict[int, LayerBound]) -> Any:
    """The value of a node: computed if it is constant, bounded if it depends on the input."""
    call = call_of(node, values, Flow)
    if not isinstance(call, Call):
        return call
    name = call.name
    kind = name.removeprefix("aten.")
    try:
        if name == "lipspline.certified_layer":
            known = leaves[call["index"]]
            kind, result = known.kind, call.stretched(call["x"], known.upper, known.rule)
        elif name not in OPERATIONS:
            raise ValueError(NO_RULE)
        else:
            result = applied(call)
    except ValueError as error:
        raise NoOperationRule(f"{where(node)}: {error}.".replace("..", ".")) from None
    flow = next((f for f in (result if isinstance(result, list) else [result]) if isinstance(f, Flow)), None)
    if flow is not None and call.reason and not call.reason.startswith("moves"):
        rows.append((node, kind, call.reason, flow))
    return result


def call_of(node: Any, values: dict[Any, Any], kind: type) -> Any:
    """The call of a node that depends on the input, which tensors of `kind` do; of any other node its value."""
    arguments = map_arg(node.args, lambda n: values[n])
    options = map_arg(node.kwargs, lambda n: values[n])
    if node.target is operator.getitem:
        picked = arguments[0][arguments[1]]
        if picked is None and isinstance(arguments[0], list) and node.users:
            raise NoOperationRule(f"certify has no rule for the places that {where(node.args[0])} returns.")
        return picked
    depends = any(isinstance(value, kind) for value in flat([list(arguments), dict(options)]))
    if not depends:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise NoOperationRule(f"The network is random: {where(node)} draws numbers at each call.")
        return node.target(*arguments, **options)
    name = str(node.target).rsplit(".", 1)[0]
    if "_assert" in name or name in ("aten.sym_size", "aten.sym_constrain_range_for_size"):
        return None
    return Call(name, _by_name(node.target, arguments, options), _outputs(node), node.target)


def _by_name(target: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    names = [argument.name for argument in target._schema.arguments]
    bound = dict(zip(names, arguments, strict=False)) | dict(options)
    for argument in target._schema.arguments:
        if argument.name not in bound and argument.has_default_value():
            bound[argument.name] = argument.default_value
    return bound


def _outputs(node: Any) -> list[tuple[tuple[int, ...], torch.dtype]]:
    value = node.meta["val"]
    every = list(value) if isinstance(value, (list, tuple)) else [value]
    return [(tuple(v.shape), v.dtype) if isinstance(v, Tensor) else ((), torch.float32) for v in every]


def _module_of(node: Any) -> str:
    """The name of the module that called an operation."""
    stack = node.meta.get("nn_module_stack") or {}
    names = [name for name, _ in stack.values()]
    return re.sub(r"@\d+$", "", names[-1]) if names and names[-1] else "-"


def where(node: Any) -> str:
    """The operation and the line of the user's code that it comes from."""
    name = str(node.target).rsplit(".", 1)[0].removeprefix("aten.")
    trace = node.meta.get("stack_trace") or ""
    frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)\n\s*(.*)', trace)
    own = [f for f in frames if "/torch/" not in f[0]] or frames
    layer = _module_of(node)
    at = f" (layer {layer!r})" if layer != "-" else ""
    if not own:
        return f"{name}{at}"
    file, line, function, code = own[-1]
    return f"{name}{at}, {Path(file).name} line {line}, in {function}: `{code.strip()}`"


# Modules with a rule of their own


_library = torch.library.Library("lipspline", "FRAGMENT")
_library.define("certified_layer(Tensor x, int index, int[] shape) -> Tensor")
_cut: dict[int, Callable[[Tensor], Tensor]] = {}
"""What the modules that were cut out compute, by index: the traced program is compared with the module."""
_library.impl("certified_layer", lambda x, index, shape: _cut[index](x).clone(), "CompositeExplicitAutograd")
torch.library.register_fake("lipspline::certified_layer", lambda x, index, shape: x.new_empty(shape), lib=_library)


@contextmanager
def _cut_leaves(model: nn.Module, example: Tensor, leaf: LeafBound) -> Iterator[dict[int, LayerBound]]:
    """Put one operation, `lipspline.certified_layer`, in the place of each module that has a bound of its own."""
    bounds: dict[int, LayerBound] = {}
    found: dict[int, nn.Module] = {}
    inside: tuple[str, ...] = ()
    for name, module in model.named_modules():
        if inside and name.startswith(inside):
            continue
        bound = leaf(name, module)
        if bound is not None:
            bounds[len(found)] = bound
            found[len(found)] = module
            inside = (*inside, f"{name}.")
    shapes = _shapes_of(found, model, example, {i: bound.name for i, bound in bounds.items()})
    _cut.update({i: module.forward for i, module in found.items()})
    for i, module in found.items():
        vars(module)["forward"] = lambda *inputs, i=i, **options: torch.ops.lipspline.certified_layer(
            x := [*inputs, *options.values()][0], i, shapes[i, tuple(x.shape)]
        )
    try:
        yield bounds
    finally:
        _cut.clear()


def _shapes_of(
    found: dict[int, nn.Module], model: nn.Module, example: Tensor, names: dict[int, str]
) -> dict[tuple[int, tuple[int, ...]], list[int]]:
    """The shapes of what modules return, by their number and the shape of what they get."""
    shapes: dict[tuple[int, tuple[int, ...]], list[int]] = {}

    def remember(module: nn.Module, inputs: Any, options: dict[str, Any], output: Any, i: int) -> None:
        given = [*inputs, *options.values()]
        if len(given) != 1 or not isinstance(given[0], Tensor) or not isinstance(output, Tensor):
            raise NoOperationRule(
                f"Layer {names[i]!r} ({type(module).__name__}) has a bound for one tensor that it gets and one that it "
                f"returns, but is called with {len(given)} arguments, or returns something else."
            )
        shapes[i, tuple(given[0].shape)] = list(output.shape)

    if found:
        hooks = [m.register_forward_hook(partial(remember, i=i), with_kwargs=True) for i, m in found.items()]
        try:
            _run(model, example)
        finally:
            for hook in hooks:
                hook.remove()
    return shapes


def as_example(model: nn.Module, shape_or_example: "tuple[int, ...] | Tensor") -> Tensor:
    """An example input with batch: given, or random numbers of a shape without batch, in the type of the model."""
    if isinstance(shape_or_example, Tensor):
        return shape_or_example.detach()
    like = next((p for p in (*model.parameters(), *model.buffers()) if p.is_floating_point()), torch.empty(0))
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, *shape_or_example, generator=generator).to(like)
