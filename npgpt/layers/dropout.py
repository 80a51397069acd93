"""Dropout: in training, each value is zeroed with probability p, and the others are multiplied by 1 / (1 - p)."""


def dropout_forward(x, mask):
    """Compute y = x * mask, or y = x if the mask is None (Srivastava et al. 2014). The cache is the mask.

    x of any shape; mask of the same shape and dtype, each value 0 with probability p, else 1 / (1 - p), so that its
    mean is 1 and y has the mean of x. It is None in evaluation. The caller draws it, so that the layer stays pure.
    """
    y = x if mask is None else x * mask
    return y, mask


def dropout_backward(dy, mask):
    """Undo `dropout_forward`: dy -> dx, same shape. The same mask scales the gradient."""
    # y = x if mask is None else x * mask
    dx = dy if mask is None else dy * mask
    return dx
