"""Whether arrays are the same but for rounding."""

import numpy as np


def assert_close(ours, theirs, rtol=1e-9, atol=1e-12, name=""):
    """Compare arrays, or dicts of arrays by their names; torch's may be tensors.

    Each value to rtol of it, or to atol of the array's largest, or of 1.
    """
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for name in theirs:
            assert_close(ours[name], theirs[name], rtol, atol, name)
        return
    theirs = theirs.detach().numpy() if hasattr(theirs, "detach") else np.asarray(theirs)
    assert np.shape(ours) == theirs.shape, name
    largest = np.abs(theirs[np.isfinite(theirs)]).max(initial=1.0)
    np.testing.assert_allclose(ours, theirs, rtol, atol * largest, err_msg=name)
