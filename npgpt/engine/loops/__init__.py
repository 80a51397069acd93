"""Compiled loops (extra `fast`): lesson lines, compiled by Numba.

lines.py    `compile_lines(function)`: the function with segments, lines that may be loops
statements.py   which lines may be loops, what they read and write
segment.py  lines that may be loops: the loop for each kind of arguments, and how it is called
check.py    a loop's first calls are compared with NumPy
trace.py    what the lines compute, found by running them with `Traced` objects
write.py    the source of a loop
vectors.py  exp, tanh, erf, maximum and sums as vector instructions
jit.py      Numba, and the cache on disk
"""
