"""Kernels on a card, called with NumPy arrays as `tests.cuda.emulate.Kernels` are: so the same tests take either."""

import numpy as np

from npgpt.engine.cuda.card import Card


class CardKernels:
    def __init__(self, precision, head_size):
        self.card = Card(precision, head_size)

    def launch(self, name, grid, block, *arguments, shared=0, order=None):
        """Copy the arrays to the card, run the kernel, and copy them back. The order of threads is the card's."""
        there = {id(array): self.card.xp.asarray(array) for array in arguments if isinstance(array, np.ndarray)}
        self.card.launch(name, grid, block, *(there.get(id(argument), argument) for argument in arguments),
                         shared=shared)
        for argument in arguments:
            if id(argument) in there and argument.flags.writeable:
                argument[...] = there[id(argument)].get()
