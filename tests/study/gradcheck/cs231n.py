"""The eight files of tools/examples/cs231n: the inputs that two of them need, and one typical mistake in each."""

# file -> what --input must say; the others say it in LESSON
INPUTS = {"relu.py": ["x=4,5"], "temporal_softmax_loss.py": ["x=4,5,3", "y=4,5:0..3", "mask=4,5:0..2"]}

# file, old text, new text, the variable whose gradient is the first wrong one, a piece of the mistake's line only
PLANTED = [
    # a mean instead of the sum
    ("affine.py", "db = np.sum(dout, axis=0)", "db = np.mean(dout, axis=0)", "b", "db = "),
    # masked by the gradient, not by the input
    ("relu.py", "dout * (x > 0)", "dout * (dout > 0)", "x", "dx = "),
    # the path through the variance is forgotten
    ("batchnorm.py", "dxc = dx_hat / std + 2 / N * xc * dvar", "dxc = dx_hat / std", "xc", "dxc = "),
    # batchnorm's axis: the shape is wrong, and broadcasting hides it
    ("layernorm.py", "np.sum(dx_hat * xc, axis=1, keepdims", "np.sum(dx_hat * xc, axis=0, keepdims", "var", "dvar = "),
    # divided by the number of classes
    ("softmax_loss.py", "dx /= N", "dx /= C", "x", "dx /= "),
    # no value after ReLU is negative
    ("two_layer_net.py", "da1[a1 <= 0] = 0", "da1[h1 < 0] = 0", "a1", "da1[h1"),
    # 1 - s for s (1 - s)
    ("lstm_step.py", "prev_c * f * (1 - f)", "prev_c * (1 - f)", "af", "daf = "),
    # the mask is forgotten
    ("temporal_softmax_loss.py", "dx_flat *= mask_flat[:, None] / N", "dx_flat /= N", "x_flat", "dx_flat /= "),
]
