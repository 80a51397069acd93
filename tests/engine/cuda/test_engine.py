"""The fused engine through `Card` and `Matmul` themselves, on a CuPy whose kernels and products run on the CPU."""

import contextlib
import types

import numpy as np
import pytest

from npgpt import GPT, AdamW, GPTConfig
from npgpt.engine.cuda import card as card_module
from npgpt.engine.cuda import matmul as matmul_module
from npgpt.engine.cuda.card import Card
from npgpt.engine.cuda.fused import FusedGPT
from npgpt.engine.philox import Philox
from npgpt.model.parameters import Parameters
from tests.cuda.emulate import compile_kernels
from tests.engine.cuda.cublaslt import Descriptors, Library

CONFIG = {"vocab_size": 65, "block_size": 24, "n_layer": 2, "n_head": 2, "n_embd": 32, "dropout": 0.1}


class Array(np.ndarray):
    """A device array in the host's memory: its address, and what CuPy's have and NumPy's do not."""

    @property
    def data(self):
        return types.SimpleNamespace(ptr=self.ctypes.data)

    def set(self, host, stream):
        assert type(host) is np.ndarray and host.shape == self.shape and host.dtype == self.dtype
        assert EmulatedCuPy.recording is None
        np.copyto(self, host)

    def fill(self, value):
        EmulatedCuPy.do(lambda: np.ndarray.fill(self, value))


class EmulatedCuPy:
    """The part of CuPy that the engine needs. While a graph is recorded, nothing is done until it is launched."""

    recording, replays = None, 0

    def __init__(self, precision):
        @contextlib.contextmanager
        def using_allocator(allocator):
            yield

        self.cuda = types.SimpleNamespace(
            Device=lambda: types.SimpleNamespace(compute_capability="90"), Stream=Stream,
            Event=lambda disable_timing: types.SimpleNamespace(done=True), using_allocator=using_allocator,
            alloc_pinned_memory=bytearray)
        self.kernels = compile_kernels(precision == "bfloat16", double=False, head_size=16)

    @classmethod
    def do(cls, work):
        if cls.recording is None:
            work()
        else:
            cls.recording.append(work)

    def RawModule(self, code, options):
        def get_function(name):
            return lambda grid, block, args, shared_mem, stream: self.do(lambda: self.kernels.launch(
                name, grid, block, *(argument if argument is None or np.ndim(argument) == 0
                                     else argument.view(np.ndarray) for argument in args)))
        return types.SimpleNamespace(get_function=get_function)

    def empty(self, shape, dtype):
        array = np.empty(shape, dtype)
        array.view(np.uint8)[...] = 0xFF
        return array.view(Array)

    def zeros(self, shape, dtype):
        return np.zeros(shape, dtype).view(Array)


class Stream:
    ptr = 0x57EA

    def __enter__(self):
        pass

    def __exit__(self, *error):
        pass

    def record(self, event):
        return event

    def begin_capture(self):
        EmulatedCuPy.recording = []

    def end_capture(self):
        recorded, EmulatedCuPy.recording = EmulatedCuPy.recording, None

        def launch(stream):
            EmulatedCuPy.replays += 1
            for work in recorded:
                work()

        return types.SimpleNamespace(launch=launch)


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 2e-6), ("bfloat16", 1e-2)])
def test_steps_of_training_are_those_of_the_lines(monkeypatch, precision, tolerance):
    library = Library(Descriptors())
    library.run = EmulatedCuPy.do
    EmulatedCuPy.replays = 0
    cupy = EmulatedCuPy(precision)
    monkeypatch.setattr(matmul_module, "load_cublaslt", lambda: library)
    monkeypatch.setattr(card_module, "import_cupy", lambda: cupy)

    config = GPTConfig(**CONFIG)
    plain = GPT(config, seed=0, dtype="float64", threads=1)
    params = Parameters(config, "float32", cupy)
    params.flat[:] = plain.params.flat
    fused = FusedGPT(params, Card(precision, config.head_size))
    grads_64 = plain.params.zeros_like()
    lines, kernels = AdamW(plain.params, 0.01), AdamW(params, 0.01)
    rng = np.random.default_rng(0)
    for step in range(4):                   # as it is, recorded, and replayed twice
        plain.params.flat[:] = params.flat
        for micro_batch in range(2):
            idx, targets = rng.integers(0, config.vocab_size, (2, 3, 20))
            masks = [Philox(1, step, micro_batch) for _ in range(2)]
            expected_loss, expected = plain.loss_and_grads(idx, targets, masks[0], 120, micro_batch > 0)
            loss, grads = fused.loss_and_grads(idx, targets, masks[1], 120, micro_batch > 0)
            assert loss == pytest.approx(expected_loss, rel=tolerance)
        error = np.linalg.norm(grads.flat - expected.flat) / np.linalg.norm(expected.flat)
        assert error < tolerance
        grads_64.flat[:] = grads.flat
        assert kernels.step(grads, 0.5) == pytest.approx(lines.step(grads_64, 0.5), rel=1e-6)
        np.testing.assert_allclose(params.flat, plain.params.flat, rtol=1e-5, atol=1e-7)
    assert EmulatedCuPy.replays == 3 * 2
