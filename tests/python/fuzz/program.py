"""Writes one program, runs it on both devices and compares after each line."""

import re
import warnings

import torch

from fuzz import drawing, tolerance, undefined
from fuzz.templates import TEMPLATES
from fuzz.tolerance import Error

GAP = re.compile(r"<(\w+)>")
# CPU kernels of these round to the tensor's dtype after each term.
IN_PLACE_SUMS = re.compile(r"accumulate|scatter_add|index_add|scatter_reduce")
HEADER = 'import torch\nfrom math import inf as inf, nan as nan\n\ndevice = "tpu"  # or "cpu"\n'


class Disagreement(AssertionError):
    def __init__(self, program, line, difference):
        self.line, self.difference = line, difference
        super().__init__(f"{difference}\n\n{program.snippet()}")


class Side:
    """One device's variables."""

    def __init__(self, device):
        self.names = {"torch": torch, "device": device, "inf": torch.inf, "nan": torch.nan}

    def run(self, text):
        """Runs a statement and waits for it; the exception, or None."""
        try:
            exec(text, self.names)
            if self.names["device"] == "tpu":
                torch.tpu.synchronize()
        except Exception as error:
            return error
        return None

    def __getitem__(self, name):
        return self.names[name]


class Line:
    """One line while its gaps are filled; see drawing.py."""

    def __init__(self, program, draw):
        self.program, self.draw = program, draw
        self.x = self.target = None
        self.dim = self.start = 0
        self.negative = self.unique = False
        self.index_lengths = []
        self.used = []  # names

    @property
    def tensors(self):
        return self.program.tensors

    def use(self, name):
        self.used.append(name)
        self.x = self.tensors[name]
        return name

    def define(self, literal):
        return self.program.define(literal)

    def complete(self, template):
        self.line = GAP.sub(lambda gap: drawing.fill(self, gap[1]), template.text)
        self.operands = [self.tensors[name] for name in self.used]
        if self.target is not None:
            self.target_name = self.used[0] if "out=" not in template.text else self.used[-1]
            self.target = self.tensors[self.target_name]
            at = self.used.index(self.target_name) if "out=" not in template.text else -1
            self.operands.pop(at)

    @staticmethod
    def memory(x):
        """Which bytes-wise elements of its storage a tensor has."""
        width = x.element_size()
        elements = torch.arange(x.untyped_storage().nbytes() // width)
        at = elements.as_strided(x.shape, x.stride(), x.storage_offset()).flatten()
        return at if width == 1 else at * width


class Program:
    def __init__(self, draw):
        self.draw = draw
        self.cpu, self.tpu = Side("cpu"), Side("tpu")
        self.tensors = {}  # name -> the CPU's
        self.lines = []
        self.count = 0

    def snippet(self):
        return HEADER + "\n".join(self.lines)

    def name(self):
        self.count += 1
        return f"v{self.count}"

    def define(self, literal):
        name = self.name()
        text = f"{name} = {literal}"
        for side in (self.cpu, self.tpu):
            if error := side.run(text):
                raise error
        self.lines.append(text)
        self.tensors[name] = self.cpu[name]
        return name

    def step(self, template=None):
        """One more line, unless a guard is against it."""
        if template is None:
            template = self.draw.choice(TEMPLATES)
        line = Line(self, self.draw)
        line.complete(template)
        if any(guard(line) for guard in (*template.guards, *undefined.ALWAYS)):
            return
        if template.writes:
            self.write(line, template)
        else:
            self.evaluate(line, template)

    # --- the two kinds of line

    def both(self, line, text):
        """Runs the statement; whether it ran, and if not it failed on both devices alike."""
        self.lines.append(text)
        expected, actual = self.cpu.run(text), self.tpu.run(text)
        if type(expected) is not type(actual) and not undefined.out_of_range(expected, actual):
            raise Disagreement(self, line, f"the cpu raises {expected!r}, the tpu {actual!r}")
        if expected is not None:
            kind, message = type(expected).__name__, str(expected).splitlines()[0]
            self.lines[-1] = f"# {text}  # {kind}: {message}"
        return expected is None

    def evaluate(self, line, template):
        magnitude = self.magnitude(line, template)
        if not self.both(line, f"result = {line.line}"):
            return
        expected, actual = self.cpu["result"], self.tpu["result"]
        if isinstance(expected, (tuple, list)) and any(
            isinstance(e, torch.Tensor) for e in expected
        ):
            names = [self.name() for _ in expected]
            self.lines[-1] = f"{', '.join(names)}, = {line.line}"
            if len(expected) != len(actual):
                raise Disagreement(self, line, f"{len(actual)} results, not {len(expected)}")
            pairs = zip(names, expected, actual, strict=True)
        elif isinstance(expected, torch.Tensor):
            name = self.name()
            self.lines[-1] = f"{name} = {line.line}"
            pairs = [(name, expected, actual)]
        else:
            if repr(expected) != repr(actual):
                raise Disagreement(self, line, f"{actual!r} instead of {expected!r}")
            return
        for name, e, a in pairs:
            self.cpu.names[name], self.tpu.names[name] = e, a
            self.compare(line, template, name, magnitude)
            if e.numel() <= drawing.LARGEST:
                self.tensors[name] = e

    def write(self, line, template):
        magnitude = self.magnitude(line, template)
        shape = line.target.shape
        if not self.both(line, line.line) and line.target.shape != shape:
            # Resized for a result that never came: its elements mean nothing.
            del self.tensors[line.target_name]
            return
        self.compare(line, template, line.target_name, magnitude)

    # --- comparison

    def compare(self, line, template, name, magnitude):
        expected, actual = self.cpu[name], self.tpu[name]
        for what in ("dtype", "shape"):
            e, a = getattr(expected, what), getattr(actual, what)
            if e != a:
                raise Disagreement(self, line, f"{what} of {name} is {a}, on the cpu {e}")
        for what, of in undefined.properties(line.line).items():
            e, a = of(expected), of(actual)
            if e != a:
                raise Disagreement(self, line, f"{what} of {name} is {a}, on the cpu {e}")
        for other in self.tensors:
            e, a = (shares(side[other], side[name]) for side in (self.cpu, self.tpu))
            if e != a:
                raise Disagreement(self, line, f"{name} and {other} share memory on one device")
        terms = max([1, *(self.cpu[used].numel() for used in line.used)])
        difference = tolerance.differs(
            actual.cpu(),
            expected,
            template.error,
            magnitude_of(magnitude, expected),
            terms,
            roundings=terms if IN_PLACE_SUMS.search(line.line) else 1,
        )
        if difference is not None:
            raise Disagreement(self, line, f"{name}: {difference}: {actual} instead of {expected}")
        self.equalise(name)

    def equalise(self, name):
        """What follows starts from the same bits on both devices: rounding does not add up."""
        expected, actual = self.cpu[name], self.tpu[name]
        if torch.equal(actual.cpu(), expected):
            return
        # The whole storage, as other variables may see what was written: where the storages are of
        # one size (see undefined.properties).
        if actual.untyped_storage().nbytes() != expected.untyped_storage().nbytes():
            actual.copy_(expected)
            return
        for side in (self.cpu, self.tpu):
            side.names["whole"] = side[name].as_strided(
                (side[name].untyped_storage().nbytes() // side[name].element_size(),), (1,), 0
            )
        self.tpu["whole"].copy_(self.cpu["whole"])

    def magnitude(self, line, template):
        """What the line gives on magnitudes, in float64, before it has run."""
        if template.error is not Error.ACCUMULATED:
            return None
        if any(word in line.line for word in ("var", "std", "cov")):
            # Differences of squares: what matters is the size of the operand.
            size = max(undefined.largest(x) for x in line.operands)
            names = {"torch": torch, "size": size if "std" in line.line else size**2}
            return names, "torch.tensor(size)", False, None
        names = dict(self.cpu.names)
        for name in line.used:
            value = self.cpu[name]
            names[name] = value.clone()  # the line may write to it
            if value.is_floating_point() or value.is_complex():
                names[name] = value.abs().to(torch.float64)
        text = re.sub(r"dtype=torch\.\w+", "dtype=torch.float64", line.line)
        text = re.sub(r"(value|alpha|beta)=-", r"\1=", text)
        return names, text, template.writes, getattr(line, "target_name", None)


def magnitude_of(prepared, expected):
    if prepared is None or not (expected.is_floating_point() or expected.is_complex()):
        return None
    names, text, writes, target = prepared
    try:
        if writes:
            exec(text, names)
            found = names[target]
        else:
            found = eval(text, names)
    except Exception:
        # It has no meaning on real numbers (a dtype that has to be complex, say).
        return expected.abs().to(torch.float64)
    found = [found] if isinstance(found, torch.Tensor) else found
    found = [f.to(torch.float64) for f in found if f.shape in ((), expected.shape)]
    found = [f.expand(expected.shape) for f in found]
    if not found:  # written to a tensor that kept its shape
        return expected.abs().to(torch.float64)
    return torch.stack([f.abs() for f in found]).amax(0)


def shares(a, b):
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() and a.numel() > 0


def run(draw, lines=None):
    """One program of 5 to 30 operators."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = Program(draw)
        for _ in range(draw.integer(5, 30) if lines is None else lines):
            program.step()
    return program
