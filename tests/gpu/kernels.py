"""Kernels on a GPU, called with NumPy arrays as `tests.cuda.emulate.Kernels` are, so that the same tests take both."""

import numpy as np

from npgpt.engine.cuda.gpu import GPU


class GPUKernels:
    def __init__(self, precision, head_size):
        self.gpu = GPU(precision, head_size)

    def launch(self, name, grid, block, *arguments, order=None):
        """Copy the arrays to the GPU, run the kernel, and copy them back. The order of threads is the GPU's."""
        there = {id(array): self.gpu.xp.asarray(array) for array in arguments if isinstance(array, np.ndarray)}
        with self.gpu.working():
            self.gpu.launch(name, grid, block, *(there.get(id(argument), argument) for argument in arguments))
        for argument in arguments:
            if id(argument) in there and argument.flags.writeable:
                argument[...] = there[id(argument)].get()
