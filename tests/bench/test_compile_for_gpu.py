"""tools/compile_for_gpu.py: what it counts in a compiled program; and, if CUDA's compiler is there, a whole step."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from npgpt import GPT, AdamW, GPTConfig
from tests.test_api import batch

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "compile_for_gpu.py"
# A loop of 4 turns whose body multiplies a slice (8, 16) of p, and writes it to a place in q; then a matmul of cuBLAS.
TEXT = """HloModule jit_program

%sliced (p0: f32[4,8,16], p1: s32[]) -> bf16[8,16] {
  %p0 = f32[4,8,16]{2,1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %c = bf16[4,8,16]{2,1,0} convert(%p0)
  ROOT %s = bf16[8,16]{1,0} dynamic-slice(%c, %p1), dynamic_slice_sizes={1,8,16}
}

%multiplied (a: bf16[8,16], b: bf16[16,32]) -> f32[8,32] {
  %a = bf16[8,16]{1,0} parameter(0)
  %b = bf16[16,32]{1,0} parameter(1)
  ROOT %d = f32[8,32]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%updated (q0: f32[4,8,32], q1: f32[8,32], q2: s32[]) -> f32[4,8,32] {
  %q0 = f32[4,8,32]{2,1,0} parameter(0)
  %q1 = f32[8,32]{1,0} parameter(1)
  %q2 = s32[] parameter(2)
  ROOT %u = f32[4,8,32]{2,1,0} dynamic-update-slice(%q0, %q1, %q2)
}

%body (t: (s32[], f32[4,8,16], f32[4,8,32], bf16[16,32])) -> (s32[], f32[4,8,16], f32[4,8,32], bf16[16,32]) {
  %t = (s32[], f32[4,8,16], f32[4,8,32], bf16[16,32]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %p = f32[4,8,16]{2,1,0} get-tuple-element(%t), index=1
  %q = f32[4,8,32]{2,1,0} get-tuple-element(%t), index=2
  %w = bf16[16,32]{1,0} get-tuple-element(%t), index=3
  %x = bf16[8,16]{1,0} fusion(%p, %i), kind=kLoop, calls=%sliced, metadata={op_name="jit(program)/slice"}
  %y = f32[8,32]{1,0} fusion(%x, %w), kind=kCustom, calls=%multiplied
  %z = f32[4,8,32]{2,1,0} fusion(%q, %y, %i), kind=kLoop, calls=%updated
  ROOT %r = (s32[], f32[4,8,16], f32[4,8,32], bf16[16,32]) tuple(%i, %p, %z, %w)
}

ENTRY %main (in: (s32[], f32[4,8,16], f32[4,8,32], bf16[16,32]), e: f32[5,6], f: f32[6,7]) -> f32[5,7] {
  %in = (s32[], f32[4,8,16], f32[4,8,32], bf16[16,32]) parameter(0)
  %e = f32[5,6]{1,0} parameter(1)
  %f = f32[6,7]{1,0} parameter(2)
  %l = (s32[], f32[4,8,16], f32[4,8,32], bf16[16,32]) while(%in), body=%body, \
backend_config={"known_trip_count":{"n":"4"}}
  ROOT %g = (f32[5,7]{1,0}, s8[64]{0}) custom-call(%e, %f), backend_config={"lhs_contracting_dimensions":["1"]}
}
"""


@pytest.fixture
def tool(monkeypatch):
    pytest.importorskip("jax", reason="JAX is not installed")
    monkeypatch.syspath_prepend(TOOL.parent)
    import compile_for_gpu
    return compile_for_gpu


def test_what_is_counted(tool):
    """Of a fusion that slices, the slice of what it reads; of an update in place, what it writes and reads for that."""
    found = [(each.name, times, moved, ops) for each, times, moved, ops in tool.kernels(tool.computations(TEXT))]
    assert found == [
        ("x", 4, 8 * 16 * 4 + 4 + 8 * 16 * 2, 0),
        ("y", 4, (8 * 16 + 16 * 32) * 2 + 8 * 32 * 4, 2 * 8 * 32 * 16),
        ("z", 4, 2 * 8 * 32 * 4 + 4, 0),
        ("g", 1, (5 * 7 + 5 * 6 + 6 * 7) * 4 + 64, 2 * 5 * 7 * 6)]


def test_a_step_has_the_matmuls_of_a_transformer(tool, monkeypatch):
    """Compiled for this CPU: for each token and weight 2 operations forward and 4 backward; and those of attention."""
    config = GPTConfig(vocab_size=40, block_size=32, n_layer=2, n_head=2, n_embd=32)
    model, found = GPT(config, kernels="xla"), []
    right = model.engine._compiled
    monkeypatch.setattr(model.engine, "_compiled", lambda *given: found.append(right(*given)) or found[0])
    AdamW(model.params, engine=model.engine).train_step([batch(config, rows=4, time=32)], [None], 126, 1.0)
    done = sum(times * ops for _, times, _, ops in tool.kernels(tool.computations(found[0].as_text())))
    L, C, V, B, T = 2, 32, 40, 4, 32
    assert done == 6 * B * T * (12 * L * C * C + V * C) + L * 6 * 2 * B * T * T * C


@pytest.mark.slow
@pytest.mark.parametrize("card", ["H100", "RTX4090"])
def test_a_card_that_is_not_there(card):
    try:
        importlib.metadata.version("jax-cuda13-plugin")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip('CUDA\'s compiler is not installed: pip install "npgpt[xla-cuda13]", 4.5 GB')
    result = subprocess.run([sys.executable, TOOL, card, "tiny-gpu"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "of the card's peak" in result.stdout and "fusion" in result.stdout
