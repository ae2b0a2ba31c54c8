"""The graph of one call of a module, with the shapes that stood in it."""

from __future__ import annotations

import inspect
import operator
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from operator import attrgetter
from threading import get_ident
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode

from tinytorch.comparison.outputs import compare_outputs
from tinytorch.errors import first_line
from tinytorch.models.adapter import entering_layers, rebuilt
from tinytorch.models.pytorch import TorchAdapter, tensors_in
from tinytorch.models.workload import Workload
from tinytorch.transforms.fuse_attention.kernel import HIDDEN, AnotherCall, NotFused, expect
from tinytorch.transforms.support.torch import ROUNDING, run_once, why_unlike

# ---------------------------------------------------------------- a module that computes its
# attention fused when it is called as it was before, else by hand

PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device)
"""What may be an argument beside tensors: a graph holds for these values, and for no others."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

Kind = tuple[Any, ...]


class GraphCode:
    """The function that a graph stands for, of a module and of tensors; it can be pickled."""

    def __init__(self, source: str, names: Mapping[str, Any], modules: Mapping[str, str]) -> None:
        self.parts = source, dict(names), dict(modules)
        space: dict[str, Any] = {name: import_module(home) for name, home in modules.items()}
        space |= names
        exec(source, space)  # what fx wrote for a graph, as its GraphModule does
        self._forward: Callable[..., Any] = space["forward"]

    @classmethod
    def of(cls, graph: fx.Graph) -> GraphCode:
        """Read it from a graph."""
        graph.lint()
        code = graph.python_code("self")
        modules = {n: each.__name__ for n, each in code.globals.items() if _is_module(each)}
        names = {name: each for name, each in code.globals.items() if name not in modules}
        return cls(code.src, names, modules)

    def __call__(self, module: nn.Module, *tensors: torch.Tensor) -> Any:
        return self._forward(module, *tensors)

    def __reduce__(self) -> Any:
        return GraphCode, self.parts


class FusedCalls:
    """The fused forward for each kind of call, and what must hold for it.

    A graph holds the plain attributes of the module, and those of the modules inside that are not
    called any more, such as a dropout: where one of them is another one, or such a module is
    replaced, in another mode or watched by a hook, the call is computed by hand.
    """

    def __init__(
        self, forwards: Mapping[Kind, GraphCode], module: nn.Module, silenced: tuple[str, ...]
    ) -> None:
        self.forwards = dict(forwards)
        self.seen = {"": _attributes(module)}
        for path in silenced:
            inner = module.get_submodule(path)
            own = {"__class__": type(inner), "training": inner.training}
            self.seen[path] = _attributes(inner) | own

    def __deepcopy__(self, memo: Any) -> FusedCalls:
        return self  # nothing in it changes

    def find(self, module: Any, kind: Kind | None) -> GraphCode | None:
        """Return the fused forward for a call, or None where it is to be computed by hand."""
        fused = None if kind is None else self.forwards.get(kind)
        if fused is None:
            return None
        for path, attributes in self.seen.items():
            part = attrgetter(path)(module) if path else module
            if path and any(getattr(part, name) for name in HOOKS):
                return None
            if any(_sign(getattr(part, name, None)) != seen for name, seen in attributes.items()):
                return None
        return fused


def call_kind(
    training: bool, inputs: tuple[Any, ...], keywords: Mapping[str, Any]
) -> tuple[Kind | None, list[torch.Tensor]]:
    """Return what a graph depends on in a call, None if an object, and the tensors in order.

    Of a tensor that is the number of its axes, of other values all.
    """
    tensors: list[torch.Tensor] = []
    kinds: list[Any] = [("training", training)]
    for value in inputs:
        kinds.append(_kind(value, tensors))
    for name in sorted(keywords):
        kinds.append((name, _kind(keywords[name], tensors)))
    return (None if _holds_object(kinds) else tuple(kinds)), tensors


def fuse_in_place(module: nn.Module, calls: FusedCalls) -> None:
    """Make a module compute its attention fused. It stays the same object, of a derived class.

    Parameters, buffers, names, hooks and other methods are unchanged.
    """
    module.__class__ = _fused_class(type(module), calls)


def is_fused(module: nn.Module) -> bool:
    """Return whether a module computes its attention fused, where it is called as before."""
    return hasattr(type(module), "_fused_calls")


def _fused_class(base: Any, calls: FusedCalls) -> Any:
    """Derive a class; the base may be such a class, too, for other kinds of calls."""
    plain, earlier = getattr(base, "_fused_calls", (base, ()))

    def forward(self: Any, *inputs: Any, **keywords: Any) -> Any:
        kind, tensors = call_kind(self.training, inputs, keywords)
        fused = calls.find(self, kind)
        if fused is not None:
            try:
                return fused(self, *tensors)
            except AnotherCall:
                pass
        return base.forward(self, *inputs, **keywords)

    def reduce(self: Any, protocol: Any) -> Any:  # a pickle cannot name a class made here
        _, _, *state = plain.__reduce_ex__(self, protocol)
        return _new, made._fused_calls, *state

    methods = {"forward": forward, "__reduce_ex__": reduce, "__module__": base.__module__}
    made: Any = type(base)(f"Fused{plain.__name__}", (base,), methods)
    made._fused_calls = plain, (*earlier, calls)
    return made


def _new(made: Any, all_calls: tuple[FusedCalls, ...]) -> Any:
    for calls in all_calls:
        made = _fused_class(made, calls)
    return made.__new__(made)


# ---------------------------------------------------------------- what is seen


def _is_module(value: Any) -> bool:
    return isinstance(value, ModuleType)


def _attributes(module: nn.Module) -> dict[str, Any]:
    own = {name: each for name, each in vars(module).items() if not name.startswith("_")}
    return {name: _sign(each) for name, each in own.items() if name != "training"}


def _sign(value: Any) -> Any:
    """Return what tells a value from others: of an object, which may be copied, only its type."""
    return value if isinstance(value, (*PLAIN, FunctionType, type)) else type(value)


def _kind(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return ("tensor", value.dim())
    if type(value) in (tuple, list):
        return (type(value).__name__, *[_kind(each, tensors) for each in value])
    if type(value) is dict:
        return ("dict", *[(name, _kind(each, tensors)) for name, each in value.items()])
    return (type(value).__name__, str(value)) if isinstance(value, PLAIN) else None


def _holds_object(kind: Any) -> bool:
    """Return whether there is None, which stands for an object, among the kinds of values."""
    if isinstance(kind, (tuple, list)):
        return any(_holds_object(each) for each in kind)
    return kind is None


# ---------------------------------------------------------------- the graph of one call of a
# module, with the shapes that stood in it

IN_PLACE = ("masked_fill_", "add_", "mul_", "div_")
FACTORIES = (
    *("arange", "empty", "eye", "full", "linspace", "ones", "rand", "randn", "tensor", "zeros"),
    "finfo",
)
MODES = ("is_grad_enabled", "is_inference_mode_enabled", "is_autocast_enabled")


def trace_call(
    module: nn.Module,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    *,
    inlined: tuple[str, ...] = (),
) -> tuple[Kind, fx.Graph]:
    """Follow a call of a module; give its kind, and the graph, of the tensors of the call.

    Modules inside stand as calls, but for those to be inlined.
    """
    kind, _ = call_kind(module.training, inputs, keywords)
    if kind is None:
        raise NotFused("it is called with an object; graphs are for tensors and plain values")
    if "forward" in vars(module):
        raise NotFused("its forward was replaced on this object by another function")
    tracer = _CallTracer(inputs, keywords, inlined)
    with _followed_functions(tracer):
        graph = tracer.trace(module)
    for node, value in tracer.values.items():
        if isinstance(value, torch.Tensor):
            node.meta["seen_shape"] = tuple(value.shape)
    _follow_in_place(graph)
    return kind, graph


class _CallTracer(fx.Tracer):
    """Traces a call: its tensors become inputs, everything else is constant.

    The value of a node is computed immediately: sizes and plain values may decide what comes next.
    """

    proxy_buffer_attributes = True

    def __init__(
        self, inputs: tuple[Any, ...], keywords: Mapping[str, Any], inlined: tuple[str, ...]
    ) -> None:
        super().__init__()
        self.inputs = inputs
        self.keywords = keywords
        self.inlined = inlined
        self.values: dict[fx.Node, Any] = {}
        self.is_computing = False

    def create_proxy(
        self, kind: str, target: Any, args: Any, kwargs: Any, *more: Any, **named: Any
    ) -> Any:
        proxy = super().create_proxy(kind, target, args, kwargs, *more, **named)
        if kind != "placeholder":
            self.is_computing = True
            try:
                self.values[proxy.node] = self._computed(proxy.node)
            finally:
                self.is_computing = False
        return proxy

    def _computed(self, node: fx.Node) -> Any:
        args, kwargs = fx.map_arg((node.args, node.kwargs), self.values.__getitem__)
        target: Any = node.target
        if node.op == "call_method":
            return getattr(args[0], target)(*args[1:], **kwargs)
        if node.op == "call_module":
            return self.root.get_submodule(target)(*args, **kwargs)
        if node.op == "get_attr":
            return attrgetter(target)(self.root)
        return target(*args, **kwargs)

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Follow the branch that the call took, where sizes or plain values decide.

        The graph then holds for such calls alone: it checks that, and raises for others.
        """
        value = self.values[obj.node]
        if isinstance(value, torch.Tensor):
            raise NotFused("numbers in its inputs decide what it computes")
        self.create_proxy("call_function", expect, (obj, bool(value)), {})
        return bool(value)

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        """Unpack as many parts as there were in the call."""
        count = len(self.values[obj.node])
        length = self.create_proxy("call_function", len, (obj,), {})
        is_same = self.create_proxy("call_function", operator.eq, (length, count), {})
        self.create_proxy("call_function", expect, (is_same, True), {})
        parts: Any = obj
        return iter([parts[place] for place in range(count)])

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: Any) -> Any:
        if self.is_computing:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        if self.is_computing:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name not in self.inlined

    def create_args_for_root(
        self, root_fn: Any, is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        inputs = [self._followed(each) for each in self.inputs]
        keywords = {name: self._followed(self.keywords[name]) for name in sorted(self.keywords)}

        def call(module: nn.Module) -> Any:
            return root_fn(module, *inputs, **keywords)

        return call, [self.root]

    def create_arg(self, a: Any) -> Any:
        """Convert single numbers; other tensors cannot be constants."""
        if isinstance(a, np.generic):
            return a.item()  # code that is written has no name for it
        if isinstance(a, torch.Tensor) and not self._is_attribute(a):
            if not (a.dim() or a.requires_grad) and a.device.type == "cpu":
                return a.item()
            raise NotFused("it makes tensors that do not depend on its inputs; make them buffers")
        return super().create_arg(a)

    def _is_attribute(self, tensor: torch.Tensor) -> bool:
        known = (*self.root.parameters(), *self.root.buffers(), *self.tensor_attrs)
        return any(tensor is each for each in known)

    def _followed(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            proxy = self.create_proxy("placeholder", f"tensor_{len(self.values) + 1}", (), {})
            self.values[proxy.node] = value.clone()
            return proxy
        if isinstance(value, (tuple, list)):
            return type(value)(self._followed(each) for each in value)
        if isinstance(value, dict):
            return {name: self._followed(each) for name, each in value.items()}
        return value


@contextmanager
def _followed_functions(tracer: _CallTracer) -> Iterator[None]:
    """Record factory functions in the graph: fx follows only functions that are given tensors."""
    originals = {name: getattr(torch, name) for name in (*FACTORIES, *MODES)}
    own = get_ident()

    def followed(name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if tracer.is_computing or get_ident() != own:  # another thread goes on as usual
                return originals[name](*args, **kwargs)
            if name in MODES:
                raise NotFused(f"torch.{name}() decides what it computes")
            return tracer.create_proxy("call_function", originals[name], args, kwargs)

        return call

    for name in originals:
        setattr(torch, name, followed(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(torch, name, original)


def _follow_in_place(graph: fx.Graph) -> None:
    """Make later nodes use the result of an in-place operation, which is the same tensor."""
    for node in graph.nodes:
        if node.op == "call_method" and node.target in IN_PLACE:
            changed = node.args[0]
            later = {each for each in changed.users if each > node}
            changed.replace_all_uses_with(node, delete_user_cb=later.__contains__)


# ---------------------------------------------------------------- where a model computes attention
# by hand, as seen in one call of a copy of it

PRODUCTS = ("matmul", "__matmul__", "bmm", "einsum")
SOFTMAX = "softmax"

Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass
class Site:
    """A place where softmax is computed and its result multiplied with something.

    `stack` are the paths of the modules around it, the outermost first, `inner` the modules below
    the last of them in which the softmax stands. `nbytes` are those of all score matrices in one
    call of the model.
    """

    stack: tuple[str, ...]
    inner: tuple[str, ...]
    shape: tuple[int, ...]
    nbytes: int = 0
    matrices: int = 0

    @property
    def path(self) -> str:
        return self.stack[-1]


@dataclass
class Observed:
    """What one call showed."""

    sites: dict[str, Site] = field(default_factory=dict)
    asked_for_weights: set[str] = field(default_factory=set)
    """The paths of each nn.MultiheadAttention that was called with need_weights=True."""


def observe_attention(workload: Workload, model: nn.Module) -> Observed:
    """Call a model that may be spoilt once, and see where it computes attention by hand."""
    observed = Observed()
    stack: list[str] = []
    modules = dict(model.named_modules())

    def ask(path: str, module: Any, inputs: tuple[Any, ...], keywords: Any) -> None:
        if _wants_weights(module, inputs, keywords):
            observed.asked_for_weights.add(path)

    def leave(*_: Any) -> None:
        stack.pop()

    # no hooks on all of them: modules that are watched by some compute by hand
    layers = entering_layers(modules, stack.append, leave)
    of_torch: dict[str, nn.Module] = {
        path: each for path, each in modules.items() if isinstance(each, nn.MultiheadAttention)
    }
    with layers, _hooked(of_torch, ask), _Watch(observed, stack, modules):
        run_once(TorchAdapter(), workload, model)
    return observed


def calls_of_modules(
    workload: Workload, model: nn.Module, paths: tuple[str, ...]
) -> dict[str, list[Call]]:
    """Call a model that may be spoilt once; give copies of the arguments of modules inside.

    Of calls of the same kind only the first one is kept.
    """
    adapter = TorchAdapter()
    found: dict[str, dict[Any, Call]] = {path: {} for path in paths}

    def enter(path: str, module: nn.Module, inputs: tuple[Any, ...], keywords: Any) -> None:
        kind, _ = call_kind(module.training, inputs, keywords)
        if kind not in found[path]:
            values = adapter.copy_inputs(tuple(keywords.values()))
            found[path][kind] = (
                adapter.copy_inputs(inputs),
                dict(zip(keywords, values, strict=True)),
            )

    with _hooked({path: model.get_submodule(path) for path in paths}, enter):
        run_once(adapter, workload, model)
    return {path: list(calls.values()) for path, calls in found.items()}


@dataclass(frozen=True)
class _Weights:
    """The result of a softmax, or what it was cast to since."""

    tensor: weakref.ref[torch.Tensor]
    stack: tuple[str, ...]
    shape: tuple[int, ...]
    nbytes: int


class _Watch(TorchFunctionMode):
    """Follow the result of each softmax to the product that takes it."""

    def __init__(self, observed: Observed, stack: list[str], modules: dict[str, Any]) -> None:
        super().__init__()
        self.observed = observed
        self.stack = stack
        self.modules = modules
        self.weights: dict[int, _Weights] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if not isinstance(result, torch.Tensor):
            return result
        if name == SOFTMAX and result.dim() >= 2:
            nbytes = result.numel() * result.element_size()
            self._keep(result, tuple(self.stack), tuple(result.shape), nbytes)
            return result
        origin = next((found for each in _flat(args) if (found := self._origin(each))), None)
        if origin is not None and name in PRODUCTS:
            self._found(origin)
        elif origin is not None and tuple(result.shape[-2:]) == origin.shape[-2:]:
            self._keep(result, origin.stack, origin.shape, origin.nbytes)
        return result

    def _keep(self, tensor: torch.Tensor, *about: Any) -> None:
        self.weights[id(tensor)] = _Weights(weakref.ref(tensor), *about)

    def _origin(self, value: Any) -> _Weights | None:
        known = self.weights.get(id(value))
        return known if known is not None and known.tensor() is value else None

    def _found(self, weights: _Weights) -> None:
        common: list[str] = []
        for one, other in zip(weights.stack, self.stack, strict=False):
            if one != other:
                break
            common.append(one)
        while len(common) > 1 and _is_of_torch(self.modules[common[-1]]):
            common.pop()
        stack = tuple(common)
        site = self.observed.sites.setdefault(stack[-1], Site(stack, (), weights.shape))
        site.inner = tuple(dict.fromkeys((*site.inner, *weights.stack[len(stack) :])))
        site.nbytes += weights.nbytes
        site.matrices += 1


def _flat(args: tuple[Any, ...]) -> Iterator[Any]:
    for each in args:
        yield from each if isinstance(each, (tuple, list)) else (each,)


def _is_of_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.")


def _wants_weights(
    module: nn.MultiheadAttention, inputs: tuple[Any, ...], keywords: dict[str, Any]
) -> bool:
    try:
        bound = inspect.signature(type(module).forward).bind(module, *inputs, **keywords)
    except TypeError:
        return False  # the call itself will say what is wrong
    return bool(bound.arguments.get("need_weights", True))


@contextmanager
def _hooked(modules: dict[str, nn.Module], enter: Callable[..., None]) -> Iterator[None]:
    """Call `enter(path, module, inputs, keywords)` before each call of a module."""
    handles = [
        module.register_forward_pre_hook(
            lambda *call, path=path: enter(path, *call), with_kwargs=True
        )
        for path, module in modules.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


# ---------------------------------------------------------------- is a module with fused attention
# the same as by hand? Asked on real and on random inputs

TOLERANCES = {torch.float64: 1e-10, torch.float16: 1e-2, torch.bfloat16: 4e-2}
"""A few units of rounding: by hand, weights are rounded before they are summed."""
PROBES = ("random", "low", "high")
"""What masks are in a probe: the last two hide everything and nothing, or the other way round."""
PROBED = 1e-2
"""So far outputs may be off in probes, where scores of 1e4 lose digits in either way."""
SEED = 0
BLIND = (
    "a query whose keys are all masked gets NaN by hand and 0 fused; on the inputs of the workload "
    "there is none"
)
UNFIT = "its masks or scales have more axes than its scores"

Proof = tuple[str, tuple[str, ...]]
"""Why the outputs are not the same, if so, and notes."""


def tolerance_for(*values: Any) -> float:
    """Return how far outputs may be off, for the coarsest dtype among the tensors in these."""
    found = {each.dtype for value in values for each in tensors_in(value)}
    return max(
        (TOLERANCES.get(dtype, ROUNDING) for dtype in found if dtype.is_floating_point),
        default=ROUNDING,
    )


def why_stateful(module: nn.Module, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> str:
    """Return what a call changes beside giving its outputs, which a graph would not, or nothing."""
    given = _copied((inputs, dict(keywords)))
    before, tensors = _held(module), tensors_in(given)
    versions = [each._version for each in tensors]
    with torch.no_grad():
        module.forward(*given[0], **given[1])
    if [each._version for each in tensors] != versions:
        return "a call writes to its inputs"
    after = _held(module)
    changed = [name for name in before | after if not _is_held(name, before, after)]
    if not changed:
        return ""
    return f"a call changes its attribute {changed[0][1]!r}, which may be read later"


def _held(module: nn.Module) -> dict[tuple[int, str], tuple[Any, Any]]:
    """Return the attributes of a module and of those inside, and how often they were written to."""
    return {
        (id(each), name): (value, _version(value))
        for each in module.modules()
        for name, value in {**vars(each), **each._buffers, **each._parameters}.items()
    }


def _version(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return None if value.is_inference() else value._version
    return len(value) if isinstance(value, (list, dict, set)) else None


def _is_held(name: Any, before: Mapping[Any, Any], after: Mapping[Any, Any]) -> bool:
    (one, first), (other, second) = before.get(name, (None, 0)), after.get(name, (None, 0))
    is_same = one is other or (isinstance(one, PLAIN) and one == other)
    return is_same and first == second


def prove(
    module: nn.Module,
    fused: Callable[..., Any],
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
) -> Proof:
    """Call a module by hand and fused, on these arguments and on random ones of the same kind."""
    reason, _ = _compare(module, fused, inputs, keywords)
    if reason:
        return reason if reason == UNFIT else f"its outputs would not be the same: {reason}", ()
    device = next((each.device for each in tensors_in((inputs, keywords))), torch.device("cpu"))
    generator = torch.Generator(device).manual_seed(SEED)
    notes: set[str] = set()
    for probe in PROBES:
        draw = partial(_random_like, generator=generator, probe=probe)
        drawn = rebuilt((inputs, dict(keywords)), draw)
        try:
            module.forward(*_copied(drawn[0]), **_copied(drawn[1]))
        except Exception:  # by hand, too, there is no answer to such inputs
            continue
        reason, is_blind = _compare(module, fused, *drawn, at_least=PROBED)
        if reason:
            return f"its outputs would not be the same on random inputs: {reason}", ()
        if is_blind:
            notes.add(BLIND)
    return "", tuple(sorted(notes))


def _compare(
    module: nn.Module,
    fused: Callable[..., Any],
    inputs: Any,
    keywords: Any,
    *,
    at_least: float = 0.0,
) -> tuple[str, bool]:
    """Return how far both are apart, if too far, and whether some are numbers that were NaN."""
    _, tensors = call_kind(module.training, _copied(inputs), _copied(keywords))
    with torch.no_grad():
        expected = module.forward(*_copied(inputs), **_copied(keywords))
        try:
            found = fused(module, *tensors)
        except AnotherCall:
            return UNFIT, False
        except Exception as error:  # the kernel may not take what it is given
            return first_line(error), False
    if _structure(expected) != _structure(found):
        return f"it gives {_structure(found)} instead of {_structure(expected)}", False
    adapter = TorchAdapter()
    pairs = zip(adapter.arrays(expected), adapter.arrays(found), strict=True)
    one, other, is_blind = [], [], False
    for by_hand, result in pairs:
        lost = np.isnan(by_hand) if by_hand.dtype.kind == "f" else np.zeros(by_hand.shape, bool)
        is_blind |= bool((lost & ~np.isnan(result)).any()) if lost.any() else False
        one.append(by_hand)
        other.append(np.where(lost, by_hand, result) if lost.any() else result)
    tolerance = max(at_least, tolerance_for(inputs, keywords, expected))
    return why_unlike(compare_outputs(one, other), tolerance), is_blind


def _structure(value: Any) -> Any:
    """Return what an output is made of: types, and the dtypes and shapes of tensors."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{tuple(value.shape)}"
    if isinstance(value, Mapping):
        parts = {name: _structure(each) for name, each in value.items()}
        return f"{type(value).__name__} of {parts}"
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__} of {[_structure(each) for each in value]}"
    return type(value).__name__


def _copied(value: Any) -> Any:
    return rebuilt(value, lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf)


def _random_like(leaf: Any, generator: torch.Generator, probe: str) -> Any:
    """Draw another tensor of the kind: a mask for a mask, numbers of the same spread for numbers.

    Whole numbers stay, since they may be indices; but what is all 0 or 1 may be a mask.
    """
    if not isinstance(leaf, torch.Tensor) or not leaf.numel() or leaf.is_complex():
        return leaf
    share = {"random": 0.5, "low": 0.0, "high": 1.0}[probe]
    coin = torch.rand(leaf.shape, generator=generator, device=leaf.device) < share
    if bool(((leaf == 0) | (leaf == 1)).all()):
        return coin.to(leaf.dtype)
    if not leaf.is_floating_point():
        return leaf
    if bool((leaf <= 0).all()) and bool((leaf <= HIDDEN).any()):
        return torch.where(coin, torch.zeros_like(leaf), leaf.min())
    drawn = torch.randn(leaf.shape, generator=generator, device=leaf.device)
    spread = leaf.float().std(correction=0).nan_to_num(1.0)
    return (drawn * spread + leaf.float().mean()).to(leaf.dtype)
