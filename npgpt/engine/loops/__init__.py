"""Compiled loops (extra `fast`): lesson lines, compiled by Numba.

    lines.py    `compile_lines(function)`: which lines may be loops, and how they are called
    trace.py    what the lines compute, found by running them with `Traced` objects
    write.py    the source of a loop
    vectors.py  exp, tanh, erf, maximum and sums as vector instructions
    jit.py      Numba, and the cache on disk

`npgpt info --loops layernorm` shows the lines of a layer beside their loops.
"""
