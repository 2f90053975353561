"""The main jobs, shortened. The whole measurements stand in benchmarks/, the same programs."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]


def run(script: str, *arguments: str) -> str:
    """Runs a script of the repository; its exit code says whether its checks held."""
    done = subprocess.run(
        [sys.executable, str(ROOT / script), *arguments],
        capture_output=True,
        text=True,
        timeout=900,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


def test_a_language_model_gives_the_tokens_it_gives_on_the_cpu():
    out = run("benchmarks/smollm2_tokens.py", "--tokens", "6")
    assert out.count("6 of 6 the same") == 3


def test_sentence_embeddings_are_those_of_the_cpu():
    assert "ok" in run("benchmarks/minilm_cosine.py")


def test_training_follows_the_cpu_and_compiles_only_at_first():
    assert "programs compiled after the second step" in run(
        "benchmarks/training_curve.py", "--steps", "8"
    )


def test_the_chat_example_answers():
    out = run("examples/chat.py", "--tokens", "8")
    assert "CPU fallbacks" in out and "from disk" in out


def test_the_embeddings_example_prints_neighbours():
    assert run("examples/embeddings.py").strip()


def test_the_training_example_saves_and_resumes(tmp_path):
    checkpoint = tmp_path / "checkpoint.pt"
    out = run("examples/train.py", "--steps", "8", "--checkpoint", str(checkpoint))
    assert f"saved {checkpoint} and resumed from it" in out
    assert checkpoint.exists()


def test_the_compiling_example():
    lines = run("examples/compile.py", "--steps", "3").splitlines()
    eager, compiled = (
        [float(x) for x in line.split()[1:]] for line in lines if line.startswith(("eager", "comp"))
    )
    assert len(eager) == 3
    assert eager == pytest.approx(compiled, rel=1e-4)
    roots = next(line for line in lines if line.startswith("roots")).split()[1:]
    assert [float(x) for x in roots] == pytest.approx([2**0.5, 3, 1234.5**0.5], rel=1e-6)


def test_the_planning_example():
    """On another chip than its default, with fewer tokens."""
    out = run("examples/plan.py", "--topology", "v6e:1x1", "--tokens", "256", "--batch", "2")
    assert "decode step on v6e:1x1: fits" in out
    assert "more sequences of 256 tokens would fit" in out
