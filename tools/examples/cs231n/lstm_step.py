"""One step of an LSTM: two outputs, so two upstream gradients."""

import numpy as np

LESSON = {"x": "N 5", "prev_h": "N 3", "prev_c": "N 3", "Wx": "5 12", "Wh": "3 12", "b": "12"}


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def lstm_step_forward(x, prev_h, prev_c, Wx, Wh, b):
    """Return the next hidden state, the next cell state and the cache."""
    a = x.dot(Wx) + prev_h.dot(Wh) + b
    ai, af, ao, ag = np.split(a, 4, axis=1)
    i = sigmoid(ai)
    f = sigmoid(af)
    o = sigmoid(ao)
    g = np.tanh(ag)
    next_c = f * prev_c + i * g
    next_h = o * np.tanh(next_c)
    cache = (x, prev_h, prev_c, Wx, Wh, i, f, o, g, next_c)
    return next_h, next_c, cache


def lstm_step_backward(dnext_h, dnext_c, cache):
    x, prev_h, prev_c, Wx, Wh, i, f, o, g, next_c = cache
    tanh_c = np.tanh(next_c)
    dnext_c = dnext_c + dnext_h * o * (1 - tanh_c**2)  # next_h depends on it, too
    dprev_c = dnext_c * f
    dai = dnext_c * g * i * (1 - i)
    daf = dnext_c * prev_c * f * (1 - f)
    dao = dnext_h * tanh_c * o * (1 - o)
    dag = dnext_c * i * (1 - g**2)
    da = np.hstack((dai, daf, dao, dag))
    dx, dprev_h = da.dot(Wx.T), da.dot(Wh.T)
    dWx, dWh = x.T.dot(da), prev_h.T.dot(da)
    db = np.sum(da, axis=0)
    return dx, dprev_h, dprev_c, dWx, dWh, db
