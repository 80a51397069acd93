"""The tests of the compiled loops catch small mistakes in them. tools/mutate.py also tries every other variable."""

import contextlib
import re
from unittest import mock

import numpy as np
import pytest

from npgpt.study.exercises.mutants import Neighbours, mutants, swapped_in
from tests.cases import uncompiled
from tests.test_mutate import mutate

of = pytest.importorskip("tests.engine.test_compiled", reason="Numba is in the extras fast and test")
TESTS = {       # the beginnings of the loops' names -> some of their tests
    "_layernorm|_gelu": lambda dtype: (of.test_layernorm_and_gelu(3, dtype), of.test_layernorm_and_gelu(2, np.float32),
                                       of.test_numbers_of_every_size(8, dtype)),
    "_softmax|_largest": lambda dtype: (of.test_attention(1, 1, dtype), of.test_attention(2, 3, dtype),
                                        of.test_what_is_not_finite_stays_so_in_its_rows(np.inf, dtype)),
    "_cross_entropy": lambda dtype: of.test_cross_entropy(1.0, 3, dtype),
    "_adamw": lambda dtype: of.test_adamw(0.3, 0.1, dtype),
    "_times": lambda dtype: (of.test_matmuls_of_a_few_rows(5, dtype),
                             of.test_the_weights_next_rows_are_prefetched_once(5))}
with uncompiled() as each:
    LOOPS = list(each)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("loop", LOOPS)
def test_small_mistakes_are_caught(loop):
    test = next(test for begin, test in TESTS.items() if re.match(begin, loop))
    with uncompiled() as loops, mock.patch.object(Neighbours, "of", lambda *_: []):
        test(np.float64)
        listed, made, missed = mutate.equivalent(), list(mutants(loops[loop])), []
        for mutant in made:
            with swapped_in(mutant, loops[loop]), contextlib.suppress(Exception):
                test(np.float64)
                missed.append(mutant)
    assert len(made) > 12 and not [mutant for mutant in missed if not mutate.reason_of(mutant, listed, loops)]
