"""What `torch_tpu.aot` tells of a compiled program, from the compiler's own listings."""

import json
import re
import xml.etree.ElementTree as ElementTree
import zipfile

import pytest

from torch_tpu import _plugins
from torch_tpu.aot import Status, compile_text, hlo, liveness, load, traffic
from torch_tpu.aot.plan_report import PlanReport, ProgramValue
from torch_tpu.aot.worker import estimated_cycles

# Two products with a donated weight; the lines are those of a model that does not exist.
STEP = """
module @step {
  func.func @main(
      %x: tensor<ROWSx1024xbf16>, %w: tensor<1024x1024xbf16> {tf.aliasing_output = 1 : i32})
      -> (tensor<ROWSx1024xbf16>, tensor<1024x1024xbf16>) {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<ROWSx1024xbf16>, tensor<1024x1024xbf16>) -> tensor<ROWSx1024xbf16>
      loc("model.py":43:1)
    %1 = stablehlo.tanh %0 : tensor<ROWSx1024xbf16> loc("model.py":44:1)
    %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0]
      : (tensor<ROWSx1024xbf16>, tensor<1024x1024xbf16>) -> tensor<ROWSx1024xbf16>
      loc("model.py":45:1)
    %3 = stablehlo.multiply %2, %0 : tensor<ROWSx1024xbf16> loc("model.py":46:1)
    %4 = stablehlo.add %w, %w : tensor<1024x1024xbf16> loc("model.py":47:1)
    return %3, %4 : tensor<ROWSx1024xbf16>, tensor<1024x1024xbf16>
  }
}
"""
INPUTS = [
    ProgramValue("x", "bfloat16", [4096, 1024]),
    ProgramValue("w", "bfloat16", [1024, 1024], "parameter", True),
]
OUTPUTS = [
    ProgramValue("y", "bfloat16", [4096, 1024], "output"),
    ProgramValue("w", "bfloat16", [1024, 1024], "updated", True),
]
MIB = 2**20


def step(rows: int) -> str:
    return STEP.replace("ROWS", str(rows))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    dump = tmp_path_factory.mktemp("aot") / "step.txt"
    program = compile_text(
        step(4096), "v5e:1x1", name="step", inputs=INPUTS, outputs=OUTPUTS, dump_hlo=dump
    )
    assert program.report.status == Status.OK, program.report.message
    return program, dump.read_text()


def test_report_of_a_program_that_fits(compiled):
    report = compiled[0].report
    assert report.fits is True and report.advice == []
    rows, weight = 8 * MIB, 2 * MIB
    assert report.argument_bytes == rows + weight
    assert report.alias_bytes == weight
    # A tuple of two pointers is an output as well.
    assert 0 < report.output_bytes - (rows + weight) <= 1024
    assert report.argument_bytes_by_role == {"input": rows, "parameter": weight}
    assert report.argument_bytes < report.peak_bytes <= report.required_bytes
    assert report.flops == pytest.approx(2 * 2 * 4096 * 1024 * 1024, rel=0.01)
    # The rows are read and the result is written; the weight is read once or twice and written.
    assert 18 * MIB <= report.hbm_traffic <= 64 * MIB
    assert report.bytes_accessed > report.argument_bytes
    assert report.estimated_cycles > 10_000
    assert report.estimated_seconds == report.estimated_cycles / 1.5e9
    assert report.arithmetic_intensity == report.flops / report.hbm_traffic
    compute = report.arithmetic_intensity >= 197e12 / 819e9
    assert report.bound == ("compute" if compute else "memory bandwidth")
    assert report.host_bytes["compiler"] > 50 * MIB
    assert "v5 lite" in report.compiler


def test_buffers_at_the_peak(compiled):
    report = compiled[0].report
    buffers = {b.name: b for b in report.buffers}
    assert (buffers["x"].bytes, buffers["x"].category) == (8 * MIB, "argument")
    assert (buffers["w"].shape, buffers["w"].padding) == ("bf16[1024,1024]", 1)
    assert sum(b.total for b in report.buffers) == report.peak_bytes
    computed = [b for b in report.buffers if b.category != "argument" and b.bytes >= MIB]
    assert computed and all(re.fullmatch(r"model\.py:4[3-7]", b.source) for b in computed)
    timeline = report.timeline
    totals = [
        sum(t) for t in zip(timeline.argument, timeline.output, timeline.temporary, strict=True)
    ]
    assert max(totals) == report.peak_bytes == totals[timeline.peak_step // timeline.stride]
    assert set(timeline.argument) == {report.argument_bytes}


def test_dump_is_the_scheduled_program(compiled):
    module = hlo.parse(compiled[1])
    assert "is_scheduled=true" in compiled[1]
    assert hlo.estimated_cycles(module).total == compiled[0].report.estimated_cycles
    parameters = [i for i in module.computations[module.entry] if i.opcode == "parameter"]
    assert len(parameters) == 2


def test_renderings(compiled, tmp_path):
    report = compiled[0].report
    text = str(report)
    assert text.startswith("step on v5e:1x1: fits\n")
    assert "10 MiB" in text and "model.py:4" in text and "GB/s" in text
    again = PlanReport.from_dict(json.loads(report.json()))
    assert again == report
    assert json.loads(report.json())["bound"] == report.bound
    page = report.html(tmp_path / "step.html").read_text()
    # Nothing is fetched, and the picture is well-formed.
    assert not re.search(r"(src|href)=|url\(|@import|<script", page)
    svg = ElementTree.fromstring(re.search(r"<svg.*</svg>", page, re.DOTALL)[0])
    assert len(svg.findall("polygon")) == 3
    assert "model.py:4" in page


def test_save_and_load(compiled, tmp_path):
    program = compiled[0]
    path = program.save(tmp_path / "step.zip")
    with zipfile.ZipFile(path) as archive:
        assert sorted(archive.namelist()) == ["executable", "manifest.json"]
        assert len(archive.read("executable")) > 1000
        manifest = json.loads(archive.read("manifest.json"))
    assert manifest["report"]["topology"] == "v5e:1x1"
    assert [v["name"] for v in manifest["report"]["inputs"]] == ["x", "w"]
    loaded = load(path)
    assert loaded.report == program.report
    # This process's device is XLA:CPU.
    with pytest.raises(RuntimeError, match=r"step is compiled for v5e:1x1.*cpu"):
        loaded.load_executable()
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="not a compiled program"):
        load(path)


def test_out_of_memory_is_a_result(tmp_path):
    program = compile_text(step(3 * 2**20), "v5e:1x1", inputs=INPUTS)
    report = program.report
    assert report.status == Status.OUT_OF_MEMORY and report.fits is False
    assert "exceeds available HBM" in report.message
    assert report.hbm_bytes == int(15.75 * 2**30)
    rows = 3 * 2**20 * 1024 * 2
    assert report.argument_bytes == rows + 2 * MIB
    assert report.required_bytes > report.hbm_bytes and report.peak_bytes > report.hbm_bytes
    assert report.flops is None and report.estimated_seconds is None
    assert {b.name for b in report.buffers if b.category == "argument"} == {"x", "w"}
    assert any(b.source.startswith("model.py:4") for b in report.buffers)
    advice = " ".join(report.advice)
    assert "2 chips" in advice and "v5p" in advice and "v5e" not in advice
    assert "does not fit" in str(report) and advice[:40] in report.html(tmp_path / "x").read_text()
    with pytest.raises(ValueError, match="no program to save"):
        program.save(tmp_path / "nothing.zip")


def test_a_compiler_that_ends_itself(monkeypatch):
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--no_such_flag=1")
    report = compile_text(step(8), "v5e:1x1").report
    assert report.status == Status.ABORTED and report.fits is None
    assert "no_such_flag" in report.message
    assert "aborted" in str(report)


def test_a_module_that_is_refused():
    report = compile_text("module {", "v5e:1x1").report
    assert report.status == Status.ERROR and report.message
    assert report.buffers == [] and report.required_bytes is None


def test_timeout():
    report = compile_text(step(8), "v5e:1x1", timeout=0.01).report
    assert report.status == Status.TIMEOUT and report.fits is None


@pytest.mark.parametrize("topology", ["", "v5e", "v9z:1x1", "v5e:0x1"])
def test_topologies_that_do_not_exist(topology):
    with pytest.raises(ValueError, match="topology"):
        compile_text(step(8), topology)


def test_without_libtpu(monkeypatch):
    monkeypatch.setattr(_plugins, "libtpu", lambda: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'torch-tpu\[tpu\]'"):
        compile_text(step(8), "v5e:1x1")


LOOP = """
module @loop {
  func.func @main(%x: tensor<256x256xf32>) -> tensor<256x256xf32> {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %r:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, tensor<256x256xf32>
    cond {
      %n = stablehlo.constant dense<TRIPS> : tensor<i32>
      %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %j = stablehlo.add %i, %one : tensor<i32>
      %w = stablehlo.dot_general %v, %v, contracting_dims = [1] x [0]
        : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
      %t = stablehlo.tanh %w : tensor<256x256xf32>
      stablehlo.return %j, %t : tensor<i32>, tensor<256x256xf32>
    }
    return %r#1 : tensor<256x256xf32>
  }
}
"""


def test_the_body_of_a_loop_counts_as_often_as_it_runs():
    few, many = (compile_text(LOOP.replace("TRIPS", str(n)), "v5e:1x1").report for n in (50, 5000))
    assert few.status == many.status == Status.OK
    assert few.unknown_loops == many.unknown_loops == 0
    assert many.estimated_cycles / few.estimated_cycles == pytest.approx(100, rel=0.1)


ASSIGNMENT = """BufferAssignment:
allocation 0: size 512, page 0, thread-local:
 value: <1 inner @0> (size=512,offset=0): f32[]{:T(128)}
allocation 1: size 4096, page 0, parameter 0, shape |f32[8,128]| at ShapeIndex {}, maybe-live-out:
 value: <2 p @0> (size=4096,offset=0): f32[8,128]{1,0:T(8,128)}
 value: <3 in_place{1} @0> (size=4096,offset=0): f32[8,128]{1,0:T(8,128)}
allocation 2: size 8192, page 0, maybe-live-out:
 value: <4 result @0> (size=8192,offset=0): f32[16,128]{1,0:T(8,128)}
allocation 3: size 12288, page 0, preallocated-temp:
 value: <5 a @0> (size=8192,offset=0): f32[9,1]{1,0:T(8,128)}
 value: <6 b @0> (size=4096,offset=0): f32[8,128]{1,0:T(8,128)}
 value: <7 c @0> (size=4096,offset=8192): f32[8,128]{1,0:T(8,128)}
allocation 4: size 4096, color 1, page 0, preallocated-temp:
 value: <8 on_chip @1> (size=4096,offset=0): f32[8,128]{1,0:T(8,128)S(1)}
"""
RANGES = """HloLiveRange (max 5):
  InstructionSequence:
    0:p
    1:a
    2:b
    3:c
    4:result
  BufferLiveRange:
    p{}:0-3
    in_place{1}:3-5
    a{}:1-2
    b{}:2-4
    c{}:3-4
    result{}:4-5
    on_chip{}:1-2
  Live ranges at 2 (peak):
    a{}: 8192 bytes (cumulative: 8192 bytes)
"""


def test_live_bytes_along_the_schedule():
    """A value and the one computed in its place count once; the memory on the chip not at all."""
    p = liveness.profile(ASSIGNMENT, RANGES)
    assert (p.argument_bytes, p.output_bytes, p.alias_bytes, p.temporary_bytes) == (
        4096,
        8192 + 4096,
        4096,
        12288,
    )
    assert p.live["argument"].tolist() == [4096] * 5
    assert p.live["output"].tolist() == [0, 0, 0, 0, 8192]
    assert p.live["temporary"].tolist() == [0, 8192, 8192, 8192, 8192]
    assert (p.steps[p.peak_step], p.live_peak_bytes) == ("result", 4096 + 8192 + 8192)
    assert {(b.name, b.bytes) for b in p.buffers} == {
        ("p{}", 4096),
        ("result{}", 8192),
        ("b{}", 4096),
        ("c{}", 4096),
    }
    assert liveness.unpadded_bytes("f32[9,1]{1,0:T(8,128)}") == 36
    assert liveness.unpadded_bytes("bf16[]{:T(256)}") == 2
    assert liveness.unpadded_bytes("pred[3]") == 3
    assert liveness.unpadded_bytes("s4[3]") == 2


TRAFFIC = """HloModule m, is_scheduled=true

%view (p: bf16[8,128]) -> bf16[1024] {
  %p = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %b = bf16[1024]{0:T(1024)(128)(2,1)} bitcast(%p)
}

%reads (a: bf16[8,128], t: f32[64,128]) -> f32[1024] {
  %a = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(0)
  %t = f32[64,128]{1,0:T(8,128)} parameter(1)
  %v = bf16[1024]{0:T(1024)(128)(2,1)} fusion(%a), kind=kLoop, calls=%view
  %s = f32[8,128]{1,0:T(8,128)} slice(%t), slice={[0:8], [0:128]}
  %r = f32[1024]{0:T(1024)} bitcast(%s)
  %c = f32[1024]{0:T(1024)} convert(%v)
  ROOT %d = f32[1024]{0:T(1024)S(1)} add(%c, %r)
}

%updates (cache: f32[64,128], row: f32[1,128], i: s32[]) -> f32[64,128] {
  %cache = f32[64,128]{1,0:T(8,128)} parameter(0)
  %row = f32[1,128]{1,0:T(1,128)} parameter(1)
  %i = s32[]{:T(128)} parameter(2)
  ROOT %u = f32[64,128]{1,0:T(8,128)} dynamic-update-slice(%cache, %row, %i, %i)
}

ENTRY %main (x: bf16[8,128], table: f32[64,128], row: f32[1,128], i: s32[]) -> f32[64,128] {
  %x = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(0)
  %table = f32[64,128]{1,0:T(8,128)} parameter(1)
  %row.1 = f32[1,128]{1,0:T(1,128)} parameter(2)
  %i.1 = s32[]{:T(128)} parameter(3)
  %f = f32[1024]{0:T(1024)S(1)} fusion(%x, %table), kind=kLoop, calls=%reads
  %start = (f32[1024]{0:T(1024)}, f32[1024]{0:T(1024)S(1)}, u32[]{:S(2)}) copy-start(%f)
  %done = f32[1024]{0:T(1024)} copy-done(%start)
  ROOT %g = f32[64,128]{1,0:T(8,128)} fusion(%table, %row.1, %i.1), kind=kLoop, calls=%updates
}
"""


def test_traffic_is_what_moves_to_and_from_the_devices_memory():
    read = 8 * 128 * 2 + 8 * 128 * 4  # all of x through a view, a slice of the table
    copied = 1024 * 4  # from the chip's memory
    updated = 128 * 4 + 128 * 4 + 4  # a row read and written, its index
    assert traffic.memory_traffic(hlo.parse(TRAFFIC)) == read + copied + updated


def test_instructions_without_an_estimate_count_for_nothing():
    known = '"backend_config":{"estimated_cycles":"40"}'
    text = f"{known} {known.replace('40', str(2**63 - 1))} {known}".encode()
    assert estimated_cycles(text) == 80
    assert estimated_cycles(b"nothing estimated") is None
