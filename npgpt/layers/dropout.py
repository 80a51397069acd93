"""Dropout: in training, zero each value with probability p, and scale the others by 1 / (1 - p)."""


def dropout_forward(x, mask):
    """Compute y = x * mask, or y = x if the mask is None.

    Parameters
    ----------
    x : array of any shape
    mask : array of x's shape and dtype, or None in evaluation
        Each value is 0 with probability p, else 1 / (1 - p), so that its mean is 1 and y has the
        mean of x. The caller draws it, so that the layer stays pure.

    Returns
    -------
    y : array, x's shape
    cache : the mask

    References
    ----------
    Srivastava et al. 2014, JMLR 15.
    """
    y = x if mask is None else x * mask
    return y, mask


def dropout_backward(dy, mask):
    """Undo `dropout_forward`: the same mask scales the gradient.

    Parameters
    ----------
    dy : array of any shape
    mask : from `dropout_forward`

    Returns
    -------
    dx : array, dy's shape
    """
    # y = x if mask is None else x * mask
    dx = dy if mask is None else dy * mask
    return dx
