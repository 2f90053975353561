"""What Dynamo's guards check, in words that mean the same in another process."""

import builtins
import enum
import functools
import hashlib
import os
import sys
import types
from collections.abc import Callable

import torch

# Their repr says all about them.
_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    type(...),
    type(NotImplemented),
    range,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
# Values of these types may be one object in one process and two in another; nothing depends on it.
_SHARED = (
    *_PLAIN,
    tuple,
    frozenset,
    slice,
    type,
    enum.Enum,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.ModuleType,
    types.CodeType,
    types.MappingProxyType,
    torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
)
_DESCRIPTORS = (
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)


class NoFact(Exception):
    """Something that cannot be recognised in another process."""


def digest(*parts: object) -> str:
    text = hashlib.blake2b(digest_size=16)
    for part in parts:
        text.update(part if isinstance(part, bytes) else repr(part).encode())
        text.update(b"\0")
    return text.hexdigest()


def canonical(value: object, other: Callable[[object], object]) -> object:
    """A constant, however its sets are ordered; what `other` says of what is none."""
    kind = type(value)
    if kind in _PLAIN:
        return (kind.__name__, repr(value))
    if kind in (tuple, list, torch.Size):
        return (kind.__name__, *(canonical(v, other) for v in value))
    if kind in (set, frozenset):
        return (kind.__name__, *sorted(repr(canonical(v, other)) for v in value))
    if kind is dict:
        return ("dict", *((canonical(k, other), canonical(v, other)) for k, v in value.items()))
    if kind is slice:
        return ("slice", *(canonical(v, other) for v in (value.start, value.stop, value.step)))
    return other(value)


def code_digest(code: types.CodeType) -> str:
    """Of what the code does, wherever it stands. Not `marshal`, whose bytes depend on how often
    its constants are referred to."""
    return digest(
        code.co_code,
        canonical(code.co_consts, code_digest),  # other constants are the code of inner functions
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags),
        code.co_exceptiontable,
    )


def _functions_of(value: object) -> list[types.FunctionType]:
    """The functions behind an attribute of a class."""
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    if isinstance(value, property):
        candidates = [value.fget, value.fset, value.fdel]
    elif isinstance(value, functools.cached_property):
        candidates = [value.func]
    else:
        candidates = [value]
    return [c for c in candidates if isinstance(c, types.FunctionType)]


class Facts:
    """Of one frame. Holds every value it has looked at, so that none takes another's address."""

    def __init__(self, global_scope: dict, local_scope: dict) -> None:
        self._scope = {"L": local_scope, "G": global_scope, "__builtins__": builtins.__dict__}
        self._values: dict = {}
        self._numbers: dict[int, int] = {}
        self._classes: dict[type, tuple] = {}
        self._codes: dict[types.CodeType, str] = {}
        # The files that the classes and functions come from.
        self.files: set[str] = set()

    def value(self, source) -> object:
        return source.get_value(self._scope, dict(self._scope), self._values)

    def of(self, kind: str, source, arguments: dict) -> object:
        """What the guard `kind` of the value at `source` checks. Raises NoFact."""
        if kind in _OF_PROCESS:
            return None
        if kind not in _RULES:
            raise NoFact(f"a guard {kind}")
        return _RULES[kind](self, self.value(source), arguments)

    def _number(self, value: object) -> int | None:
        """Which of the values looked at this is: two sources that lead to one object lead to one
        object elsewhere, too."""
        return None if isinstance(value, _SHARED) else self._numbered(value)

    def _numbered(self, value: object) -> int:
        return self._numbers.setdefault(id(value), len(self._numbers))

    def knows(self, code: types.CodeType) -> bool:
        """Whether some fact says what this code is."""
        return code in self._codes

    def _code(self, code: types.CodeType) -> str:
        if code not in self._codes:
            self._codes[code] = code_digest(code)
            if not code.co_filename.startswith("<"):
                self.files.add(code.co_filename)
        return self._codes[code]

    def _module(self, name: str) -> None:
        path = getattr(sys.modules.get(name), "__file__", None) or ""
        if os.path.isabs(path) and path.endswith(".py"):
            self.files.add(path)

    def _class(self, cls: type) -> tuple:
        """A class with the code of all its methods, since they can be replaced."""
        found = self._classes.get(cls)
        if found is None:
            parts = []
            for base in cls.__mro__:
                parts.append((base.__module__, base.__qualname__))
                self._module(base.__module__)
                if base.__flags__ & (1 << 9):  # made by a class statement
                    for name, value in list(vars(base).items()):
                        for function in _functions_of(value):
                            _refuse_constant(function)
                            parts.append((name, self._code(function.__code__)))
            if issubclass(cls, enum.Enum):
                parts.extend((member.name, self.constant(member.value)) for member in cls)
            number = self._numbered(cls) if "<locals>" in cls.__qualname__ else None
            found = (cls.__module__, cls.__qualname__, digest(*parts), number)
            self._classes[cls] = found
        return found

    def constant(self, value: object) -> object:
        return canonical(value, self.identity)

    def identity(self, value: object) -> object:
        """Which object this is, for objects that have a name."""
        if type(value) in _PLAIN:
            return (type(value).__name__, repr(value))
        if isinstance(value, enum.Enum):
            return ("enum", self._class(type(value)), value.name, self.constant(value.value))
        if isinstance(value, type):
            return ("class", *self._class(value))
        if isinstance(value, torch._ops._OpNamespace):
            return ("operators", value.__name__)
        if isinstance(value, types.ModuleType):
            if sys.modules.get(value.__name__) is not value:
                raise NoFact(f"module {value.__name__}, which cannot be imported by its name")
            self._module(value.__name__)
            return ("module", value.__name__)
        if isinstance(value, types.CodeType):
            return ("code", self._code(value))
        if isinstance(value, types.FunctionType):
            _refuse_constant(value)
            name, code = value.__qualname__, self._code(value.__code__)
            # There may be several of those that a function makes.
            number = self._numbered(value) if "<locals>" in name else None
            return ("function", value.__module__, name, code, number)
        if isinstance(value, types.BuiltinFunctionType):
            # A function of a module or of a class; another's is bound to an object without a name.
            owner = self.identity(value.__self__)
            return ("builtin", owner, value.__module__, value.__qualname__)
        if isinstance(value, types.MethodType):
            return ("method", self.identity(value.__self__), self.identity(value.__func__))
        if isinstance(value, _DESCRIPTORS):
            return ("descriptor", self._class(value.__objclass__), value.__name__)
        if isinstance(value, functools._lru_cache_wrapper):
            return ("lru_cache", self.identity(value.__wrapped__))
        if isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
            return ("operator", str(value))
        raise NoFact(f"a {type(value).__module__}.{type(value).__qualname__} by its identity")

    def type_and_number(self, value: object) -> object:
        return (self._class(type(value)), self._number(value))

    def tensor(self, value: torch.Tensor) -> object:
        marks = sorted(
            (k, repr(v))
            for k, v in vars(value).items()
            # The one that Dynamo gives to parameters when it traces them says nothing here.
            if k.startswith("_dynamo") and (k, v) != ("_dynamo_static_input_type", "unguarded")
        )
        return (
            self._class(type(value)),
            self._number(value),
            str(value.dtype),
            str(value.device),
            str(value.layout),
            tuple(value.size()),
            tuple(value.stride()),
            value.storage_offset(),
            value.requires_grad,
            value.is_leaf,
            torch._C._dispatch_keys(value).raw_repr(),
            marks,
        )


def _refuse_constant(function: types.FunctionType) -> None:
    """What a function marked so gives is called for while tracing, and is part of the trace."""
    ours = (function.__module__ or "").partition(".")[0] in ("torch", "torch_tpu")
    if getattr(function, "_dynamo_marked_constant", False) and not ours:
        raise NoFact(f"{function.__qualname__}, whose result is taken for constant")


def _keys(facts: Facts, value: dict, arguments: dict) -> object:
    return (facts._class(type(value)), *(facts.constant(k) for k in dict.keys(value)))


def _contains(facts: Facts, value: object, arguments: dict) -> object:
    return arguments["key"] in value


def _identity(facts: Facts, value: object, arguments: dict) -> object:
    return facts.identity(value)


def _constant_value(facts: Facts, value: object, arguments: dict) -> object:
    return facts.constant(value)


def _type(facts: Facts, value: object, arguments: dict) -> object:
    return facts.type_and_number(value)


def _length(facts: Facts, value: object, arguments: dict) -> object:
    return (facts.type_and_number(value), len(value))


_RULES: dict[str, Callable[[Facts, object, dict], object]] = {
    "TYPE_MATCH": _type,
    "CONSTANT_MATCH": _constant_value,
    "EQUALS_MATCH": _constant_value,
    "BOOL_MATCH": _constant_value,
    "NONE_MATCH": _constant_value,
    "ID_MATCH": _identity,
    "CLASS_MATCH": _identity,
    "MODULE_MATCH": _identity,
    "FUNCTION_MATCH": _identity,
    "CLOSURE_MATCH": _identity,
    "BUILTIN_MATCH": _identity,
    "SEQUENCE_LENGTH": _length,
    # Dynamo takes hooks to be empty dictionaries, and does not look again.
    "EMPTY_NN_MODULE_HOOKS_DICT": lambda facts, value, arguments: len(value),
    "DICT_KEYS_MATCH": _keys,
    "MAPPING_KEYS_CHECK": _keys,
    "DICT_CONTAINS": _contains,
    "DICT_NOT_CONTAINS": _contains,
    "SET_CONTAINS": _contains,
    "SET_NOT_CONTAINS": _contains,
    "HASATTR": lambda facts, value, arguments: hasattr(value, arguments["attr"]),
    "NOT_PRESENT_IN_GENERIC_DICT": lambda facts, value, arguments: (
        arguments["attr"] in value.__dict__
    ),
    "DUPLICATE_INPUT": lambda facts, value, arguments: value is facts.value(arguments["source_b"]),
    "TENSOR_MATCH": lambda facts, value, arguments: facts.tensor(value),
}
# These check the state of the process, which `state` describes.
_OF_PROCESS = (
    "GRAD_MODE",
    "DETERMINISTIC_ALGORITHMS",
    "GLOBAL_STATE",
    "TORCH_FUNCTION_STATE",
    "DEFAULT_DEVICE",
    "AUTOGRAD_SAVED_TENSORS_HOOKS",
)


def _settings(config: types.ModuleType) -> str:
    """Not `get_hash`, which takes sets in any order."""
    ignored = config._compile_ignored_keys
    settings = {k: v for k, v in config.get_config_copy().items() if k not in ignored}
    return digest(canonical(settings, repr))


def state() -> object:
    """What Dynamo reads of the process besides the frame. Raises NoFact where it is in the middle
    of something that says more."""
    from torch._dynamo import convert_frame
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        raise NoFact("a process group: ranks are constants to Dynamo")
    if convert_frame.torch_function_mode_stack_state_mgr.stack:
        raise NoFact("a torch function mode")
    if _get_current_dispatch_mode_stack():
        raise NoFact("a dispatch mode")
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise NoFact("a function transform")
    if torch.autograd.forward_ad._current_level >= 0:
        raise NoFact("forward-mode differentiation")
    if not torch._C._autograd._saved_tensors_hooks_is_enabled():
        raise NoFact("saved tensor hooks")
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        raise NoFact("saved tensor hooks")
    return (
        convert_frame.initial_global_state.__getstate__(),
        torch.is_inference_mode_enabled(),
        str(torch.utils._device.CURRENT_DEVICE),
        _settings(torch._dynamo.config),
        _settings(torch.fx.experimental._config),
        torch.tpu.device_count(),
        torch.tpu.current_device(),
        torch.tpu.get_device_name(),
        torch.cuda.is_available(),
    )
