"""One trace: what it depends on, and what Dynamo made of it."""

import contextlib
import copy
import dataclasses
import functools
import importlib
import itertools
import marshal
import os
import sys
import time
import types
from collections.abc import Callable, Iterator

import torch
from torch._dynamo import bytecode_transformation
from torch._dynamo.bytecode_transformation import unique_id
from torch._dynamo.convert_frame import DynamoOutput
from torch._dynamo.guards import CheckFunctionManager, GuardBuilder
from torch._dynamo.output_graph import OutputGraphCommon, OutputGraphGuardsState
from torch._dynamo.pgo import get_code_state
from torch._dynamo.utils import CleanupHook, _get_error_on_graph_break, counters
from torch._guards import Guard, GuardsSet, TracingContext

from ..inference import Program
from . import graph
from .facts import Facts, NoFact, digest


def _started() -> float:
    """When this process began, in seconds since the epoch; at the latest now."""
    now = time.time()
    try:
        with open("/proc/uptime") as file:
            uptime = float(file.read().split()[0])
        with open("/proc/self/stat") as file:
            # The 22nd field, counted behind the command's name, which may contain blanks.
            ticks = int(file.read().rpartition(")")[2].split()[19])
        # At the end of this tick Python has loaded nothing yet.
        started = now - uptime + (ticks + 1) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return now
    return min(now, started)


_STARTED = _started()


@functools.lru_cache(maxsize=4096)
def _file_digest(path: str, modified: int) -> str:
    with open(path, "rb") as file:
        return digest(file.read())


def _file(path: str) -> str:
    """The digest of a file of Python code as this process has loaded it. Raises NoFact."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise NoFact(f"code of {path}, which is no file") from error
    if status.st_mtime > _STARTED:
        raise NoFact(f"code of {path}, which has changed since it may have been loaded")
    return _file_digest(path, status.st_mtime_ns)


_KEYS = "DICT_KEYS_MATCH"


@dataclasses.dataclass
class Entry:
    """A frame's trace. Everything in it can be pickled."""

    # What has to hold.
    files: dict[str, str]
    guards: list[tuple]  # source, kind, arguments
    facts: list
    key_order: list[tuple]  # source of a dictionary whose order matters, its keys
    # What Dynamo found.
    code: bytes
    globals: list[tuple[str, str, str]]  # name, what it is, its own name
    compiled: str  # the name of the graph's function
    graph: bytes
    program: Program
    builtins: str | None
    sizes: dict
    automatic_dynamic: list
    side_effects: tuple

    def check(self, facts: Facts) -> None:
        """Raises NoFact with the reason why this is not what Dynamo would find."""
        for path, expected in self.files.items():
            if _file(path) != expected:
                raise NoFact(f"{path} has changed")
        ordered = (((source, _KEYS, {}), keys) for source, keys in self.key_order)
        guarded = zip(self.guards, self.facts, strict=True)
        for (source, kind, arguments), expected in itertools.chain(guarded, ordered):
            try:
                found = facts.of(kind, source, arguments)
            except Exception as error:
                raise NoFact(f"{source.name}: {error}") from error
            if found != expected:
                raise NoFact(f"{source.name} ({kind}) was {expected}, is {found}")


class _Graph(OutputGraphCommon):
    """What Dynamo asks of a trace after it is done."""

    def __init__(self, state: OutputGraphGuardsState, nodes, side_effects: tuple) -> None:
        super().__init__(state)
        self.graph = nodes
        self.tracing_context = TracingContext(None)
        self.cleanups: list[CleanupHook] = []
        self.root_tx = None
        self.compliant_custom_ops: set = set()
        self.non_compliant_ops: set = set()
        self._side_effects = side_effects

    @property
    def placeholders(self) -> list[torch.fx.Node]:
        return self.graph.find_nodes(op="placeholder")

    def is_empty_graph(self) -> bool:
        return False

    def has_outputs(self) -> bool:
        return True

    def count_calls(self) -> int:
        return sum(node.op.startswith("call_") for node in self.graph.nodes)

    def get_graph_sizes_structured(self) -> dict:
        return {}

    def get_replayed_side_effect_source_refs(self) -> tuple:
        return self._side_effects


class _Restored(DynamoOutput):
    """A trace whose guards are built."""

    checks: CheckFunctionManager

    def build_guards(self, code, hooks=None, save=False, cache_entries=None, strict_error=False):
        if hooks is not None and (hooks.guard_fail_fn or hooks.guard_filter_fn):
            return super().build_guards(code, hooks, save, cache_entries, strict_error)
        return self.checks


def _guard(source, kind: str, arguments: dict) -> Guard:
    create = getattr(GuardBuilder, kind)
    return Guard(source, functools.partial(create, **arguments) if arguments else create)


def observed() -> dict:
    """The sizes that Dynamo has seen, from which it learns which of them vary."""
    return {
        (where, name): copy.copy(entry)
        for where, state in get_code_state().items()
        for name, entry in state.automatic_dynamic.items()
    }


def _globals_of(output, code: types.CodeType, before: set[str]) -> tuple[list, str]:
    """The names that Dynamo gave to the frame's globals, as they can be given elsewhere, and the
    one of the graph's function."""
    found, compiled = [], []
    for hook in output.cleanups:
        name, value = hook.name, output.global_scope.get(hook.name)
        if name.startswith("__compiled_fn_"):
            compiled.append(name)
        elif name.startswith("__builtins_dict__"):
            found.append((name, "builtins", ""))
        elif isinstance(value, types.ModuleType):
            if sys.modules.get(value.__name__) is not value:
                raise NoFact(f"the module {value.__name__}")
            found.append((name, "module", value.__name__))
        else:
            raise NoFact(f"a global {name}")
    found += [(name, "module", module) for name, module in output.import_sources.items()]
    if len(compiled) != 1:
        raise NoFact(f"{len(compiled)} graphs")
    known = {name for name, *_ in found} | set(compiled)
    for name in code.co_names:
        if name.startswith(("__resume_at", "__import_", "__builtins_dict__")) and (
            name not in known and name not in before
        ):
            raise NoFact(f"a global {name}")
    return found, compiled[0]


def written(traced: DynamoOutput, program: Program, before: set[str], seen: dict) -> Entry:
    """The entry for a trace. `before`: the frame's globals, and `seen`: what was `observed`,
    before it was made. Raises NoFact for one that would not serve."""
    output = traced.tracer_output.output_graph
    if output.aotautograd_guards or output.export or output.random_calls:
        raise NoFact("what AOTAutograd, an export or Python's random numbers ask for")
    if output.torch_function_subclass_inlined:
        raise NoFact("a tensor subclass")
    if output.shape_env.backed_var_to_val:
        raise NoFact("sizes that vary")
    facts = Facts(output.global_scope, output.local_scope)
    guards, found = [], []
    for guard in sorted(output.guards, key=Guard.sort_key):
        create = guard.create_fn
        arguments = {}
        if isinstance(create, functools.partial):
            if create.args:
                raise NoFact(f"a guard {guard.inner_create_fn().__name__} with arguments")
            # The tensor itself, which a guard finds at its source.
            arguments = {k: v for k, v in create.keywords.items() if k != "value"}
        kind = guard.inner_create_fn().__name__
        if kind == "SHAPE_ENV":
            continue  # no size varies
        found.append(facts.of(kind, guard.originating_source, arguments))
        guards.append((guard.originating_source, kind, arguments))
    new_globals, compiled = _globals_of(output, traced.bytecode, before)
    sizes = {}
    for source, geometry in output.input_source_to_sizes_strides.items():
        numbers = (*geometry["size"], *(geometry["stride"] or ()))
        if not all(type(n) is int for n in numbers):
            raise NoFact("sizes that vary")
        sizes[source] = {k: tuple(v) if v is not None else None for k, v in geometry.items()}
    try:
        code = marshal.dumps(traced.bytecode)
    except ValueError as error:
        raise NoFact("a constant in the code") from error
    for traced_code in output.tracing_context.traced_code:
        # Python's own, or made from a text, as the methods of data classes are: then facts about
        # its class tell.
        path = traced_code.co_filename
        if not path.startswith("<frozen ") and not facts.knows(traced_code):
            facts.files.add(path)
    return Entry(
        files={path: _file(path) for path in facts.files},
        guards=guards,
        facts=found,
        code=code,
        globals=new_globals,
        compiled=compiled,
        graph=graph.write(program.graph),
        program=dataclasses.replace(program, graph=None),
        builtins=output.name_of_builtins_dict_key_in_fglobals,
        key_order=[(source, facts.of(_KEYS, source, {})) for source in output.guard_on_key_order],
        sizes=sizes,
        automatic_dynamic=[(*k, v) for k, v in observed().items() if seen.get(k) != v],
        side_effects=tuple(output.get_replayed_side_effect_source_refs()),
    )


def _value(what: str, name: str, global_scope: dict) -> object:
    if what == "module":
        return importlib.import_module(name)
    found = global_scope["__builtins__"]
    return found if isinstance(found, dict) else found.__dict__


def _reserve_numbers(entry: Entry) -> None:
    """Dynamo numbers the names it gives to globals, and takes none twice."""
    numbers = [int(n.rpartition("_")[2]) for n, what, _ in entry.globals if what == "builtins"]
    skip = max(numbers, default=-1)
    bytecode_transformation._unique_id_counter = itertools.count(
        max(next(bytecode_transformation._unique_id_counter), skip + 1)
    )


@contextlib.contextmanager
def _globals_installed(entry: Entry, global_scope: dict) -> Iterator[None]:
    """The frame's globals have the names that sources and code use; those that are new are removed
    again after an error. Raises NoFact where a name is taken."""
    _reserve_numbers(entry)
    new = []
    try:
        for name, what, own_name in entry.globals:
            value = _value(what, own_name, global_scope)
            if name not in global_scope:
                global_scope[name] = value
                new.append(name)
            elif global_scope[name] is not value:
                raise NoFact(f"the global {name} is taken")
        yield
    except BaseException:
        for name in new:
            del global_scope[name]
        raise


def restored(
    entry: Entry, code: types.CodeType, global_scope: dict, local_scope: dict, closure
) -> DynamoOutput:
    """What Dynamo's `compile_frame` returns, without tracing. Raises NoFact where that would be
    something else."""
    with _globals_installed(entry, global_scope):
        entry.check(Facts(global_scope, local_scope))
        return _made(entry, code, global_scope, local_scope, closure)


def _made(
    entry: Entry, code: types.CodeType, global_scope: dict, local_scope: dict, closure
) -> DynamoOutput:
    program = dataclasses.replace(entry.program, graph=graph.read(entry.graph))
    run: Callable | None = program.prepared()
    if run is None:
        raise NoFact("a graph that is no program here")
    guards = [_guard(*g) for g in entry.guards]
    from torch._dynamo import convert_frame

    output = _Graph(
        OutputGraphGuardsState(
            local_scope=local_scope,
            global_scope=global_scope,
            torch_function_mode_stack=[],
            guard_on_key_order={source for source, _ in entry.key_order},
            input_source_to_sizes_strides=entry.sizes,
            dual_level=torch.autograd.forward_ad._current_level,
            functorch_layers=[],
            current_device=torch.utils._device.CURRENT_DEVICE,
            global_state_guard=convert_frame.initial_global_state,
            _guards=GuardsSet(guards),
            _aotautograd_guards=[],
            name_of_builtins_dict_key_in_fglobals=entry.builtins,
        ),
        program.graph,
        entry.side_effects,
    )
    checks = CheckFunctionManager(code, output)
    disabled = torch._dynamo.disable(run, reason="do not trace Dynamo-compiled graph")
    # The frame may be restored a second time while its first code is still there.
    compiled = unique_id("__compiled_fn", with_uuid=True)
    output.cleanups.append(CleanupHook.create(global_scope, compiled, disabled))
    bytecode = marshal.loads(entry.code)
    names = (compiled if name == entry.compiled else name for name in bytecode.co_names)
    bytecode = bytecode.replace(co_names=tuple(names))
    counters["stats"]["unique_graphs"] += 1
    for where, name, size in entry.automatic_dynamic:
        merged = get_code_state()[where].automatic_dynamic[name]
        merged |= size
    traced = types.SimpleNamespace(
        error_on_graph_break=_get_error_on_graph_break(),
        is_tracing_resume_prologue=False,
        output_graph=output,
        output_graph_for_cleanup=output,
        closure=closure,
        f_globals=global_scope,
    )
    result = _Restored(traced, bytecode, [], None)
    result.checks = checks
    return result
