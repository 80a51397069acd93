# Layers without gradients in self: backward hands all of them back.
import numpy as np


class SoftmaxGate:
    """Multiply every feature by its share of attention."""

    def __init__(self, w, b):
        self.w = w
        self.b = b

    def forward(self, x):
        logits = x @ self.w + self.b
        expo = np.exp(logits - logits.max(-1, keepdims=True))
        share = expo / expo.sum(-1, keepdims=True)
        self.saved = (x, share)
        return x * share

    def backward(self, grad_y):
        x, share = self.saved
        grad_share = grad_y * x
        inner = (grad_share * share).sum(-1, keepdims=True)
        grad_logits = share * (grad_share - inner)
        grad_w = x.T @ grad_logits
        grad_b = grad_logits.sum(0)
        grad_x = grad_y * share + grad_logits @ self.w.T
        return grad_x, grad_w, grad_b


class PositionalScale:
    """Positions are added, then each channel is scaled by exp(log_scale); x is (B, T, C)."""

    def __init__(self, pos, log_scale):
        self.pos, self.log_scale = pos, log_scale

    def forward(self, x):
        self.t = x.shape[1]
        self.h = x + self.pos[: self.t]
        self.scale = np.exp(self.log_scale)
        return self.h * self.scale

    def backward(self, d_out):
        d_scale = (d_out * self.h).sum(axis=(0, 1))
        d_log_scale = d_scale * self.scale
        d_h = d_out * self.scale
        d_pos = np.zeros_like(self.pos)
        d_pos[: self.t] = d_h.sum(axis=0)
        return {"x": d_h, "pos": d_pos, "log_scale": d_log_scale}
