"""Stands for the arrays of another library, as a GPU's are."""

import numpy as np


class Elsewhere(np.ndarray):
    """What is made `like` one of these is one of these, and `made` notes by which function."""

    made = []

    def __array_function__(self, function, types, args, kwargs):
        result = super().__array_function__(function, types, args, kwargs)
        if function not in (np.empty, np.ones, np.zeros):
            return result
        self.made.append(function)
        return result.view(Elsewhere)
