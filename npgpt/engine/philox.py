"""Counter-based random numbers: a pure function of the seed, the step, the place in the model and the element.

The same numbers as in cuda/philox.cu, so that dropout on a GPU can be compared with the CPU's bit for bit.
"""

import math

import numpy as np

LOW_32 = 0xFFFFFFFF


def philox(counter, key):
    """Compute Philox4x32-10 (Salmon et al. 2011): a counter of four words and a key of two -> four random words.

    Words are below 2^32, in arrays of uint64, which hold the product of two words, or in Python ints.
    """
    c0, c1, c2, c3 = counter
    key_0, key_1 = key
    for _ in range(10):
        product_0, product_1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = ((product_1 >> 32) ^ c1 ^ key_0, product_1 & LOW_32,
                          (product_0 >> 32) ^ c3 ^ key_1, product_0 & LOW_32)
        key_0 = key_0 + 0x9E3779B9 & LOW_32         # the golden ratio
        key_1 = key_1 + 0xBB67AE85 & LOW_32         # the square root of 3, minus 1
    return c0, c1, c2, c3


class Philox:
    """A generator for dropout masks, with the one method of np.random.Generator that they need, `random`.

    seed: 64 bits. step, micro_batch: 32 bits each. xp: the array library, numpy or cupy. site: the number of the next
    call. The calls follow the order of the places in the model, so each place has its own number.
    """

    def __init__(self, seed, step=0, micro_batch=0, xp=np):
        self.key = seed & LOW_32, seed >> 32 & LOW_32
        self.step, self.micro_batch, self.xp = step & LOW_32, micro_batch & LOW_32, xp
        self.site = 0

    def random(self, shape, dtype=np.float32):
        """Draw multiples of 2^-24 in [0, 1): an array (shape, dtype)."""
        n = math.prod(shape)
        group = self.xp.arange(-(-n // 4), dtype=np.uint64) & LOW_32            # four elements share a counter
        words = philox((group, self.site, self.micro_batch, self.step), self.key)
        self.site += 1
        words = self.xp.stack(words, axis=-1).reshape(-1)[:n].reshape(shape)    # word k is element k of its group
        return (words >> 8).astype(dtype) * 2.0**-24        # the upper 24 bits, as many as float32 holds exactly
