"""Small layers in the words of many people, and what must be said of each.

A block begins with its cases, each a line "# fact | layer | inputs | old => new | verdict | words":
the block's code, in which `new` replaces `old`, is `right`, `rounded`, `unread` (right, but a
gradient was not found), `WRONG x: code` (x is wrong first, by a line with this code), or `stopped`
by an error. All words must be said, those after "not " must not. A fact with "float64:" is one
without mpmath. Lines that begin with "#   " go on.
"""

LAYERS = r"""
# a class is its own cache | Affine(W=6 5, b=5) | x=4,6 | | right
# a transposed gradient | Affine(W=6 5, b=5) | x=4,6 | self.x.T @ d => d.T @ self.x |
#   WRONG W: d.T @ | dW: the numbers are right, its axes are in another order
# a gradient summed over all axes is a number | Affine(W=6 5, b=5) | x=4,6 | d.sum(0) => d.sum() |
#   WRONG b: d.sum() | db: it was summed over axis 0 too
# dW and db are found in self | Affine(W=6 5, b=5) | x=4,6 | d.sum(0) => d.mean(0) |
#   WRONG b: d.mean(0) | db is 0.25 times the true
# a weight without a gradient is named | Affine(W=6 5, b=5) | x=4,6 | self.db = => self.other = |
#   unread | no gradient was found of b, which
# the methods may have other names | Affine(W=6 5, b=5) | x=4,6 | def forward => def __call__ |
#   right
# a constructor that fails is one line | Affine(W=6 5, b=5) | x=4,6 |
#   self.W, => assert b is None, 'no b'\n        self.W, | stopped |
#   line 4: Affine(W=6 5, b=5): AssertionError: no b
# a constructor's missing argument | Affine(W=6 5) | x=4,6 |  | stopped |
#   missing 1 required positional argument: 'b'
# a constructor's unknown name | Affine(W=6 5, b=bias) | x=4,6 |  | stopped |
#   name 'bias' is not defined
# an unknown shape of an input | Affine(W=6 5, b=5) |  |  | stopped |
#   nothing says the shape of x: use --input x=4,5
# an input that is no shape | Affine(W=6 5, b=5) | x=4;6 | | stopped | write x=4,5 for a shape
# an integer where a gradient should be | Affine(W=6 5, b=5) | x=4,6 |
#   d.sum(0) => d.sum(0).astype(int) | WRONG b: self.db
# a forgotten self | Affine(W=6 5, b=5) | x=4,6 | self.db => db | unread |
#   b: is it a local variable? Nothing reads it
# layers in a list | Two(W=6 5, b=5) | x=4,6 | d @ self.W.T => d @ self.W.T * 2 | WRONG x |
#   or it is in layer.backward
class Affine:
    def __init__(self, W, b):
        self.W, self.b = W, b
    def forward(self, x):
        self.x = x
        return x @ self.W + self.b
    def backward(self, d):
        self.dW = self.x.T @ d
        self.db = d.sum(0)
        return d @ self.W.T
class Two:
    def __init__(self, W, b):
        self.layers = [Affine(W, b)]
    def forward(self, x):
        for layer in self.layers: x = layer.forward(x)
        return x
    def backward(self, d):
        for layer in self.layers[::-1]:
            d = layer.backward(d)
        return d

# a forward on the line of its def | flat | x=2,3,4 | | right | not 0 of
# a forgotten reshape in it | flat | x=2,3,4 | dout.reshape(shape) => dout | WRONG x: dx = dout |
#   it needs a reshape
def flat_forward(x): return x.reshape(len(x), -1), x.shape
def flat_backward(dout, shape):
    dx = dout.reshape(shape)
    return dx

# results in a tuple beside the cache | step | h=2,4; c=2,4 | | right
# and one argument for their gradients | step | h=2,4; c=2,4 |
#   backward(dh, dc, cache): => backward(dstate, cache):\n    dh, dc = dstate | right
# the gradient that is written to is named | step | h=2,4; c=2,4 |
#   dc = dc + => dc += | right | writes to dc, | not to dh
# dt is of the argument of tanh | step | h=2,4; c=2,4 | dc * c => dc * h | WRONG h: dh = |
#   t                        2x4                4      9  0 digits  no dv
def step_forward(h, c):
    new_c = c * np.tanh(h)
    t = np.tanh(new_c)
    new_h = t * h
    return (new_h, new_c), (h, c, t)
def step_backward(dh, dc, cache):
    h, c, t = cache
    dt = dh * h * (1 - t ** 2)
    dc = dc + dt
    g = np.tanh(h)
    dh = dh * t + dc * c * (1 - g ** 2)
    dc = dc * g
    return dh, dc

# filled through a view | rows | x=4,5 | | right | not other
# a mistake below it | rows | x=4,5 | return da * => return 2 * da * | WRONG x: return 2 |
#   11 40 digits  ok | dx is 2 times
def rows_forward(x):
    a = np.sin(x)
    y = a * a
    return y, (x, a)
def rows_backward(dy, cache):
    x, a = cache
    da = np.zeros_like(a)
    for i in range(len(a)):
        row = da[i]
        row += 2 * dy[i] * a[i]
    return da * np.cos(x)

# dp is the gradient of the second p | soft | s=4,5 | | right | not other
def soft_forward(s):
    p = np.exp(s)
    p = p / p.sum(axis=1, keepdims=True)
    y = p * p
    return y, p
def soft_backward(dy, p):
    dp = 2 * dy * p
    ds = p * (dp - (dp * p).sum(axis=1, keepdims=True))
    return ds

# no label but 0 | bce | z=6; y=6:0..1 | | stopped | "6:0..1" is 0 everywhere
def bce_forward(z, y):
    return np.log(1 + np.exp(-z * (2 * y - 1)))
def bce_backward(dout, z, y):
    return dout * (1 / (1 + np.exp(-z)) - y)

# a random mask is drawn alike | noise | v=4,5 | | right | not float64
# Python's generator is seeded too | noise | v=4,5 | np.random.rand(*v.shape) => random.random() |
#   right
# a generator of the file's own, without a seed | noise | v=4,5 |
#   np.random.rand(*v.shape) => rng.random(v.shape) | right
# a generator in the forward, without a seed | noise | v=4,5 |
#   np.random.rand(*v.shape) => np.random.default_rng().random(v.shape) | stopped |
#   two runs on equal inputs differ | no verdict | without a seed
# code that reads the clock has no verdict | noise | v=4,5 |
#   np.random.rand(*v.shape) => time.time() % 1e-3 | stopped | no verdict
import random, time
rng = np.random.default_rng()
def noise_forward(v, keep=0.8):
    m = np.random.rand(*v.shape) / keep
    return v * m, m
def noise_backward(dout, m):
    dv = dout * m
    return dv

# state in a global object is of this run | cube | x=4,5 | | right
# a mistake in a global object's method | cube | x=4,5 | ** 2 => ** 1 | WRONG x: kept.pull(g)
# a counter in a list is set back | cube | x=4,5 |
#   return y, None => calls.append(len(calls))\n    return y * len(calls), None | right
# a counter that changes nothing | cube | x=4,5 | y = => global total\n    total += 1\n    y = |
#   right
class Kept:
    def push(self, x):
        self.was = x
        return x ** 3
    def pull(self, g):
        return g * 3 * self.was ** 2
kept, calls, total = Kept(), [], 0
def cube_forward(x):
    y = kept.push(x)
    return y, None
def cube_backward(g, _):
    dx = kept.pull(g)
    return dx

# gradients as attributes of a global object | mul | a=4,5; b=4,5 | | right | not adds to
# += into a global dict is right at the first call | mul | a=4,5; b=4,5 |
#   total["b"] = => total["b"] += | right | db: adds to what an earlier call left
# results in a list | mul | a=4,5; b=4,5 | spot.da, total["b"] => [spot.da, total["b"]] | right
# half of the results in a dict | mul | a=4,5; b=4,5 |
#   spot.da, total["b"] => spot.da, {"b": total["b"]} | right
# all of the results in a dict | mul | a=4,5; b=4,5 |
#   spot.da, total["b"] => {"grad_b": total["b"], "a": spot.da} | right
# placeholders are not the gradients | mul | a=4,5; b=4,5 |
#   spot.da = dy => da = db = None\n    spot.da = dy | right
class Spot: pass
spot, total = Spot(), {"b": 0.0}
def mul_forward(a, b):
    spot.a, spot.b = a, b
    return a * b
def mul_backward(dy):
    spot.da = dy * spot.b
    total["b"] = dy * spot.a
    return spot.da, total["b"]

# the batch's mean in a dW | dense | A=3 4; W=2 3; b=2 1 |  | WRONG W: dW = |
#   dW is 0.25 times the true gradient everywhere | db is 0.25 times
# the same without the 1 / m | dense | A=3 4; W=2 3; b=2 1 | / m => / 1 | right
def dense_forward(A, W, b):
    Z = W.dot(A) + b
    return Z, (A, W, b)
def dense_backward(dZ, saved):
    A_before, W, b = saved
    m = dZ.shape[1]
    dW = dZ.dot(A_before.T) / m
    db = dZ.sum(1, keepdims=True) / m
    return W.T.dot(dZ), dW, db

# d_v is the gradient of v | gate | x=4,5; w=5,3 | | WRONG h: d_h = d_s * s | not right to 40
# a gradient that is still to be written | gate | x=4,5; w=5,3 |
#   d_s * s => d_s * s * (1 - s) @@ x.T @ d_h => ... | unread | no gradient was found of w
# a transposed gradient of a pair | gate | x=4,5; w=5,3 |
#   d_s * s => d_s * s * (1 - s) @@ x.T @ d_h => d_h.T @ x | WRONG w: d_w = | in another order
# grad_v is the gradient of v | gate | x=4,5; w=5,3 | d_h => grad_h | WRONG h: grad_h = d_s * s
# v_grad is the gradient of v | gate | x=4,5; w=5,3 | d_h => h_grad | WRONG h: h_grad = d_s * s
# results in another order than the arguments | gate | x=4,5; w=5,3 |
#   d_s * s => d_s * s * (1 - s) @@ return d_x, d_w => return d_w, d_x | WRONG x |
#   the order of the results is WRONG: every caller unpacks dx, dw
# right code with these names | gate | x=4,5; w=5,3 | d_s * s => d_s * s * (1 - s) | right
def gate_forward(x, w):
    h = x @ w
    s = 1 / (1 + np.exp(-h))
    y = s * s
    return y, (x, w, s)
def gate_backward(d_y, cache):
    x, w, s = cache
    d_s = d_y * 2 * s
    d_h = d_s * s
    d_x = d_h @ w.T
    d_w = x.T @ d_h
    return d_x, d_w

# a gradient filled part by part, by another name | parts | x=4,5 | | WRONG x: grad_x = | not zeros
# the same with the right line | parts | x=4,5 |
#   grad_h * np.sin => grad_h * np.cos | right
def parts_forward(x):
    h = np.sin(x)
    g = h * h
    return g, (x, h)
def parts_backward(grad_g, cache):
    x, h = cache
    grad_h = np.zeros_like(x)
    grad_h[0] = 2 * h[0] * grad_g[0]
    grad_h[1:] = 2 * h[1:] * grad_g[1:]
    grad_x = grad_h * np.sin(x)
    return grad_x

# a mask that is written into dy | pos | x=4,5 |  | right |
#   pos_backward writes to dout, which the caller may need
# the backward takes an argument again | pos | x=4,5; k=3.0 |
#   dout[x < 0] = 0 => dout = dout * (x > 0) | right | not writes to
# what the forward returned is not needed: no cache | pos | x=4,5 | return y, x => return y | right
def pos_forward(x, k=2.0):
    y = k * np.maximum(x, 0)
    return y, x
def pos_backward(dout, x, k=2.0):
    dout[x < 0] = 0
    dx = k * dout
    return dx

# the mean over the batch, without its 1 / N | mean | x=4,5 |  | WRONG x: dx = |
#   dx is 4 times the true gradient everywhere
# the mean over the batch | mean | x=4,5 | dy, (n, => dy / n, (n, | right
def mean_forward(x):
    y = x.mean(axis=0)
    return y, x.shape
def mean_backward(dy, cache):
    n, d = cache
    dx = np.tile(dy, (n, 1))
    return dx

# the result is the cache, if the forward returns nothing else | grow | x=4,5 | | right
def grow_forward(x):
    return np.exp(x)
def grow_backward(dy, out):
    dx = dy * out
    return dx

# heads=2 is the number 2 | fold | x=4,6; heads=2 | | right | 4x6
# heads=2, is a shape | fold | x=4,6; heads=2, | | stopped | integer scalar arrays
# an argument without a value | fold | x=4,6 | | stopped | nothing says the shape of heads
def fold_forward(x, heads):
    y = x.reshape(len(x), heads, -1).sum(1)
    return y, (x.shape, heads)
def fold_backward(dy, cache):
    shape, heads = cache
    dx = np.tile(dy, heads).reshape(shape)
    return dx

# the first backward of one forward | area_naive | x=4,5 | | right
# the second backward of one forward | area_fast | x=4,5 | | WRONG x: dx = 3 * dy | dx is 1.5 times
# FORWARD BACKWARD, whatever they are called | area_forward_naive undo | x=4,5 | | right
# FORWARD BACKWARD, of which one is missing | area_forward_naive undone | x=4,5 |  | stopped |
#   there is no function undone
# a name that is no pair | undo | x=4,5 |  | stopped | there is no pair undo_forward |
#   it has area_naive, area_fast
def area_forward_naive(x):
    return 2 * x, None
def area_backward_naive(dy, cache):
    dx = 2 * dy
    return dx
def area_backward_fast(dy, cache):
    dx = 3 * dy
    return dx
def undo(dy, cache):
    return 2 * dy

# mode='train' is a string | drop | x=4,5; mode='train' | | right | not did not run
# mode=train without quotes | drop | x=4,5; mode=train | | right | not did not run
# a line that never ran | drop | x=4,5 | | right | right where it ran: line 10 did not run
# a line that never ran, of wrong code | drop | x=4,5 | dx = dy => dx = 2 * dy | WRONG x: dx = 2 |
#   all of it ran: line 10
def drop_forward(x, mode="test"):
    if mode == "train":
        x = 3 * x
    y = np.tanh(x)
    return y, (y, mode)
def drop_backward(dy, cache):
    y, mode = cache
    dx = dy * (1 - y**2)
    if mode == "train": dx = 3 * dx
    return dx

# a dict of shapes | two | x=4,6; p={'W': '6 5', 'b': '5'} | | right | p.W | p.b
# a wrong part of a dict | two | x=4,6; p={'W': '6 5', 'b': '5'} | dz.sum(0) => dz.sum(0) * 2 |
#   WRONG p.b: "b": | dp.b is 2 times
# a list of shapes | two | x=4,6; p=['6 5', '5'] |
#   p["W"] => p[0] @@ p["b"] => p[1] @@ {"W": x.T @ dz, "b": dz.sum(0)} => [x.T @ dz, dz.sum(0)] |
#   right | p.0 | p.1
def two_forward(x, p):
    h = np.tanh(x @ p["W"] + p["b"])
    return h, (x, p, h)
def two_backward(dh, cache):
    x, p, h = cache
    dz = dh * (1 - h**2)
    grads = {"W": x.T @ dz, "b": dz.sum(0)}
    return dz @ p["W"].T, grads

# integers with a negative bound are not drawn below it | pick | x=4,6; t=9:-2..4 | | right
# numbers with negative bounds | pick | x=4,6:-3.5..-0.5; t=9:0..4 |
#   np.abs(x => np.sqrt(-x @@ np.sign(x => -0.5 / np.sqrt(-x | right
def pick_forward(x, t):
    assert -3 < t.min() < 1 < t.max() < 4
    y = np.abs(x)
    return y[t], (x, t)
def pick_backward(dout, cache):
    x, t = cache
    dy = np.zeros_like(x)
    np.add.at(dy, t, dout)
    dx = dy * np.sign(x)
    return dx

# LESSON has a dict for each pair | one | | | right | 4x5
# LESSON of another pair | half | | | right | 7
# LESSON says no other names | half |  | 'x': '7' => 'z': '7' | stopped |
#   no forward has an argument z
# LESSON is no dict | half | | LESSON = { => LESSON = 5, { | stopped | LESSON must be a dict
LESSON = {'one': {'x': '4 5'}, 'half': {'x': '7'}}
def one_forward(x):
    return x + 1
def one_backward(dy):
    return dy
def half_forward(x):
    return x / 2
def half_backward(dy):
    return dy / 2

# names with two underscores, properties and static methods | Soft(a=6) | x=4,6 | | right
# super() and a mistake in this class | Wide(a=6) | x=4,6 | | WRONG s: self.ds = | ds is 0.25
# super() and a mistake in the other class | Wide(a=6) | x=4,6 |
#   mean(0) => sum(0) @@ self.da = => self.da = 2 * | WRONG a |
#   da is wrong, which no line of this backward assigns
class Soft:
    def __init__(self, a):
        self.__k, self.a = 3.0, a
    @property
    def k(self):
        return self.__k
    @staticmethod
    def up(z):
        return np.tanh(z)
    def forward(self, x):
        self.t = self.up(self.k * x)
        return self.a * self.t
    def backward(self, dy):
        self.da = (dy * self.t).sum(0)
        dt = dy * self.a
        return dt * (1 - self.t**2) * self.__k
class Wide(Soft):
    def __init__(self, a):
        super().__init__(a)
        self.s = np.ones(6)
    def forward(self, x):
        self.z = super().forward(x)
        return self.s * self.z
    def backward(self, dy):
        self.ds = (dy * self.z).mean(0)
        return super().backward(dy * self.s)

# Parameter objects | Line(6, 5) | x=4,6 | | right | W
# a wrong gradient in a Parameter | Line(6, 5) | x=4,6 | d.sum(0) => d.mean(0) |
#   WRONG b: self.b.grad = d.mean(0)
# sublayers in a list | Stack() | x=4,6 | | right | lines.0.W | lines.1.b
# a wrong sublayer in a list | Stack() | x=4,6 | d.sum(0) => d.mean(0) | WRONG lines.0.b |
#   no line of this backward assigns
class Parameter:
    def __init__(self, *shape):
        self.data, self.grad = np.random.randn(*shape), None
class Line:
    def __init__(self, n, m):
        self.W, self.b = Parameter(n, m), Parameter(m)
    def forward(self, x):
        self.x = x
        return x @ self.W.data + self.b.data
    def backward(self, d):
        self.W.grad = self.x.T @ d
        self.b.grad = d.sum(0)
        return d @ self.W.data.T
class Stack:
    def __init__(self):
        self.lines = [Line(6, 5), Line(5, 3)]
    def forward(self, x):
        for each in self.lines: x = each.forward(x)
        return x
    def backward(self, d):
        for each in self.lines[::-1]: d = each.backward(d)
        return d

# weights that the backward updates | Step(w=6 5) | x=4,6 | | right | 6x5
# the rate does not matter | Step(w=6 5) | x=4,6; rate=0.5 | | right | 6x5
# an update by a part of the gradient | Step(w=6 5) | x=4,6 | rate * => rate / 4 * | WRONG w |
#   dw is 0.25 times
# dx from the updated weights | Step(w=6 5) | x=4,6; rate=0.5 | return dx => return d @ self.w.T |
#   WRONG x: return d @
class Step:
    def __init__(self, w):
        self.w = w
    def forward(self, x):
        self.x = x
        return x @ self.w
    def backward(self, d, rate):
        dx = d @ self.w.T
        self.w -= rate * self.x.T @ d
        return dx

# code in float32 is right to three digits | tanh | x=4,5 | | right | float32: to three digits
# float64: code in float32 is right to three digits | tanh | x=4,5 |  | right |
#   float32: to three digits
# a mistake of one percent in float32 | tanh | x=4,5 | dx = dy => dx = 1.01 * dy |
#   WRONG x: 1.01 * dy
def tanh_forward(x):
    x = np.float32(x)
    y = np.tanh(x)
    return y, y
def tanh_backward(dy, y):
    dx = dy * (1 - y**2)
    return dx

# what a wide draw alone reaches | Relu6 | x=4,6 |  | WRONG x: dx = |
#   in the draw with a standard deviation of 3
# right code at wide draws | Relu6 | x=4,6 | > 0) => > 0) * (self.x < 6) | right
# float64: what a wide draw alone reaches | Relu6 | x=4,6 | | WRONG x: dx = | in the draw with
# float64: right code at wide draws | Relu6 | x=4,6 | > 0) => > 0) * (self.x < 6) | right
class Relu6:
    def forward(self, x):
        self.x = x
        return np.clip(x, 0, 6)
    def backward(self, dy):
        dx = dy * (self.x > 0)
        return dx

# no rounded number | gelu | x=4,5 |
#   R => np.sqrt(2 / np.pi) @@ S => 3 * 0.044715 * np.sqrt(2 / np.pi) | right | not rounded
# ten digits in both | gelu | x=4,5 | R => 0.7978845608 @@ S => 0.1070322244 | rounded |
#   right to 12 digits, because of 0.1070322244 (line 9)
# six digits | gelu | x=4,5 | R => 0.797885 @@ S => 0.107032 | rounded |
#   because of 0.107032 (line 9)
# six digits, the last off by one | gelu | x=4,5 |
#   tanh(R => tanh(np.sqrt(2 / np.pi) @@ R => 0.797886 @@ S => 0.107032 | WRONG x: du * |
#   not rounded
# three digits are no rounding | gelu | x=4,5 |
#   tanh(R => tanh(np.sqrt(2 / np.pi) @@ R => 0.798 @@ S => 0.107 | WRONG x: du *
# float64: no rounded number | gelu | x=4,5 |
#   R => np.sqrt(2 / np.pi) @@ S => 3 * 0.044715 * np.sqrt(2 / np.pi) | right | not rounded
# float64: ten digits are right | gelu | x=4,5 | R => 0.7978845608 @@ S => 0.1070322244 | right
# float64: six digits | gelu | x=4,5 | R => 0.797885 @@ S => 0.107032 | rounded |
#   because of 0.107032 (line 9)
# float64: six digits, the last off by one | gelu | x=4,5 |
#   tanh(R => tanh(np.sqrt(2 / np.pi) @@ R => 0.797886 @@ S => 0.107032 | WRONG x: du * |
#   not rounded
def gelu_forward(x):
    t = np.tanh(R * (x + 0.044715 * x**3))
    y = x * (1 + t) / 2
    return y, (x, t)
def gelu_backward(dy, cache):
    x, t = cache
    du = dy * x * (1 - t**2) / 2
    dx = dy * (1 + t) / 2 + du * (R + S * x**2)
    return dx

# a left out eps is said, not called wrong | norm | x=4,5 |  | rounded |
#   does the backward leave a small number out, such as an eps?
# one that is too large to be rounding is asked for | norm | x=4,5 | 1e-8 => 1e-5 | WRONG v: dv = |
#   does the backward leave a small number out, such as an eps?
# a left out eps that matters is wrong | norm | x=4,5 | 1e-8 => 1e-3 | WRONG v: dv =
def norm_forward(x):
    v = (x * x).mean(1, keepdims=True)
    y = x / np.sqrt(v + 1e-8)
    return y, (x, v)
def norm_backward(dy, cache):
    x, v = cache
    dv = -0.5 * (dy * x).sum(1, keepdims=True) / np.sqrt(v) ** 3
    dx = dy / np.sqrt(v + 1e-8) + 2 * x * dv / x.shape[1]
    return dx

# an unknown --input is refused | mean | x=4,5; q=4,5 | | stopped | no forward has an argument q
# an unknown value of --input is refused | mean | x=4,5; eps=1e-5 | | stopped |
#   no forward has an argument eps
def mean_forward(x):
    y = x.mean(axis=0)
    return y, x.shape
def mean_backward(dy, cache):
    n, d = cache
    dx = np.tile(dy / n, (n, 1))
    return dx

# a weight with two underscores | Affine(W=6 5, b=5) | x=4,6 | self.b => self.__b @@ self.db =>
#   self.__db | right
# a wrong one with two underscores | Affine(W=6 5, b=5) | x=4,6 | self.b => self.__b @@
#   self.db => self.__db @@ sum(0) => mean(0) | WRONG b
# a weight with one underscore, dW of _W | Affine(W=6 5, b=5) | x=4,6 | self.W => self._W | right
class Affine:
    def __init__(self, W, b):
        self.W = W
        self.b = b
    def forward(self, x):
        self.x = x
        return x @ self.W + self.b
    def backward(self, d):
        self.dW = self.x.T @ d
        self.db = d.sum(0)
        return d @ self.W.T

# a dict of gradients in one line | Lin(W=6 5, b=5) | x=4,6 | | WRONG b: self.grads = {
# a local variable before it | Lin(W=6 5, b=5) | x=4,6 | dy.mean(0) => dz.sum(0) @@
#   self.grads => dz = 2 * dy\n        self.grads | WRONG b: dz = 2 * dy
class Lin:
    def __init__(self, W, b):
        self.params = {'W': W, 'b': b}
    def forward(self, x):
        self.x = x
        return x @ self.params['W'] + self.params['b']
    def backward(self, dy):
        self.grads = {'W': self.x.T @ dy, 'b': dy.mean(0)}
        return dy @ self.params['W'].T

# a dict called grads is not the gradient of s | Two(W=6 5) | x=4,6 | | right | 10 40 digits
class Two:
    def __init__(self, W):
        self.params, self.grads = {'W': W}, {}
    def forward(self, x):
        s = x @ self.params['W']
        self.x, self.s = x, s
        return s * s
    def backward(self, dy):
        ds = 2 * dy * self.s
        dz = ds
        self.grads['W'] = self.x.T @ dz
        return dz @ self.params['W'].T

# the line of an update | Step(w=6 5) | x=4,6 | | WRONG w: self.w -= | not return dx
# the rate is a default | Step(w=6 5) | x=4,6 | / 4 => / 1 @@ d, rate) => d, rate=0.1) | right
class Step:
    def __init__(self, w):
        self.w = w
    def forward(self, x):
        self.x = x
        return x @ self.w
    def backward(self, d, rate):
        dx = d @ self.w.T
        self.w -= rate * self.x.T @ d / 4
        return dx

# a dataclass | F(g=6) | x=4,6 | | right | g
# slots | F(g=6) | x=4,6 | @dataclass\nclass F:\n    g: object =>
#   class F:\n    __slots__ = 'g', 'x', 'dg'\n    def __init__(self, g):\n        self.g = g | right
from dataclasses import dataclass
@dataclass
class F:
    g: object
    def forward(self, x):
        self.x = x
        return self.g * x
    def backward(self, dy):
        self.dg = (dy * self.x).sum(0)
        return dy * self.g

# static methods | F() | x=4,6 | | right
class F:
    @staticmethod
    def forward(x):
        return x * x, x
    @staticmethod
    def backward(dy, x):
        dx = 2 * dy * x
        return dx

# a number in a helper is a wide draw too | six | x=4,5 | | WRONG x: dx = dy
# a factor is found beside zeros | six | x=4,5 | clip(z, 0, 6) => maximum(z, 0) @@ dx = dy =>
#   dx = 4 * dy | WRONG x: dx = | dx is 4 times the true
def inside(z):
    return np.clip(z, 0, 6)
def six_forward(x):
    y = inside(x)
    return y, x
def six_backward(dy, x):
    dx = dy * (x > 0)
    return dx

# nested dicts of gradients | Net() | x=4,6 | | right
# wrong nested dicts | Net() | x=4,6 | h.T @ dy => h.T @ dy * 2 | WRONG dec.W
class Net:
    def __init__(self):
        self.p = {'enc': {'W': np.random.randn(6, 5)}, 'dec': {'W': np.random.randn(5, 6)}}
        self.g = {}
    def forward(self, x):
        self.x = x
        self.h = np.tanh(x @ self.p['enc']['W'])
        return self.h @ self.p['dec']['W']
    def backward(self, dy):
        dz = dy @ self.p['dec']['W'].T * (1 - self.h**2)
        self.g['dec'] = {'W': self.h.T @ dy}
        self.g['enc'] = {'W': self.x.T @ dz}
        return dz @ self.p['enc']['W'].T

# dy of a loop is not the dx of its x | Stack() | x=4,6 | | right | not other | not called dx
class Line:
    def __init__(self, n, m):
        self.W = np.random.randn(n, m)
    def forward(self, x):
        self.x = x
        return x @ self.W
    def backward(self, d):
        self.dW = self.x.T @ d
        return d @ self.W.T
class Stack:
    def __init__(self):
        self.lines = [Line(6, 5), Line(5, 3)]
    def forward(self, x):
        for each in self.lines: x = each.forward(x)
        return x
    def backward(self, d):
        for each in self.lines[::-1]: d = each.backward(d)
        return d

# S off by one | gelu | x=4,5 | S => 0.107031 | WRONG x
# S off by two | gelu | x=4,5 | S => 0.107034 | WRONG x
# no word of a draw if it is right | gelu | x=4,5 | (R + => (0.797884 + @@ S => 0.107032 |
#   rounded | not in the draw
def gelu_forward(x):
    t = np.tanh(R * (x + 0.044715 * x**3))
    y = x * (1 + t) / 2
    return y, (x, t)
def gelu_backward(dy, cache):
    x, t = cache
    du = dy * x * (1 - t**2) / 2
    dx = dy * (1 + t) / 2 + du * (R + S * x**2)
    return dx
R = np.sqrt(2 / np.pi)

# a global number is set back | count | x=4,5 | | right
n = 0
def count_forward(x):
    global n
    n += 1
    y = n * x
    return y, n
def count_backward(dy, n):
    dx = n * dy
    return dx

# a gradient is that of the value after `/=`, and not blamed for the one before it | soft |
#   z=4,5; v=5,3 | dz = p => dz = 2 * p | WRONG z: dz = | dz is 2 times |
#   not first wrong gradient is dp
def soft_forward(z, v):
    p = np.exp(z)
    p /= p.sum(1, keepdims=True)
    y = p @ v
    return y, (p, v)
def soft_backward(dy, cache):
    p, v = cache
    dp = dy @ v.T
    dv = p.T @ dy
    dz = p * (dp - (dp * p).sum(1, keepdims=True))
    return dz, dv

# a dict, unpacked as one | swish | x=4,5,6; beta=6 |
#   (x, beta, s)\ndef => {'x': x, 'b': beta, 's': s}\ndef @@ s = cache => s = cache.values() |
#   right | not float64
# a dict of gradients | swish | x=4,5,6; beta=6 |
#   return dx, dbeta => return {'dbeta': dbeta, 'x': dx} | right
# a gradient whose name says nothing | swish | x=4,5,6; beta=6 |
#   dx = dout * s + dz * beta\n    return dx => b = dout * s + dz * beta\n    return b | right
# a result that is changed in place | swish | x=4,5,6; beta=6 |
#   y = x * s\n => y = x.copy()\n    y *= s\n | right
# the gradient of the result is changed in place | swish | x=4,5,6; beta=6 |
#   ds = dout * x => dout *= x\n    ds = dout\n    dout = dout / x | right
# a name for something else | swish | x=4,5,6; beta=6 |
#   ds = dout * x\n    dz = ds * s => ds = 2 * dout * x\n    dz = ds / 2 * s | right
# a sum by loops | swish | x=4,5,6; beta=6 | dbeta = (dz * x).sum(axis=(0, 1)) =>
#   dbeta = np.zeros(6)\n    for row in dz * x:\n        for dbeta_row in row:\n
#               dbeta += dbeta_row | right
def swish_forward(x, beta):
    z = beta * x
    s = 1 / (1 + np.exp(-z))
    y = x * s
    return y, (x, beta, s)
def swish_backward(dout, cache):
    x, beta, s = cache
    ds = dout * x
    dz = ds * s * (1 - s)
    dbeta = (dz * x).sum(axis=(0, 1))
    dx = dout * s + dz * beta
    return dx, dbeta
"""

# Typical mistakes in the files of tools/examples/cs231n, which are right; a line is
# "file, and layer if it has another name | inputs | old => new | verdict".
CS231N = """
affine | | db = np.sum(dout, axis=0) => db = np.mean(dout, axis=0) | WRONG b: db =
relu | x=4,5 | dout * (x > 0) => dout * (dout > 0) | WRONG x: dx =
batchnorm | | dxc = dx_hat / std + 2 / N * xc * dvar => dxc = dx_hat / std | WRONG xc: dxc =
layernorm | | np.sum(dx_hat * xc, axis=1, => np.sum(dx_hat * xc, axis=0, | WRONG var: dvar =
softmax_loss | | dx /= N => dx /= C | WRONG x: dx /=
two_layer_net two_layer_net_loss | | da1[a1 <= 0] = 0 => da1[h1 < 0] = 0 | WRONG a1: da1[h1
lstm_step | | prev_c * f * (1 - f) => prev_c * (1 - f) | WRONG af: daf =
temporal_softmax_loss | x=4,5,3; y=4,5:0..3; mask=4,5:0..2 | \
dx_flat *= mask_flat[:, None] / N => dx_flat /= N | WRONG x_flat: dx_flat /=
"""
