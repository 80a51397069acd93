"""How BLAS reads the matrices of an array: its last two axes, of NumPy's arrays or CuPy's."""


def blas_matrices(array):
    """Return the array, or a copy if its matrices are not as BLAS needs them: rows or columns
    without gaps.
    """
    (m, n), (row, column), size = array.shape[-2:], array.strides[-2:], array.itemsize
    gapless = column == size and row >= n * size or row == size and column >= m * size
    whole_numbers = all(each >= 0 and each % size == 0 for each in array.strides)
    return array if gapless and whole_numbers else array.copy()


def layout(array):
    """Return whether an array's matrices are transposed in memory, and their leading dimension."""
    m, n = array.shape[-2:]
    row, column = (each // array.itemsize for each in array.strides[-2:])
    as_it_is = column == 1 and row >= n
    return not as_it_is, max(row, n) if as_it_is else max(column, m)
