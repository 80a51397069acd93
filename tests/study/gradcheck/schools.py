"""The layers of ten people, none of whom knew npgpt: each is right, and wrong after one change.

The format is that of `small_layers.py`.
"""

SCHOOLS = r"""
# right AffineGelu(W=6 5, b=5) | AffineGelu(W=6 5, b=5) | x=4,6 | | right | not float64 |
#   not other
# planted AffineGelu(W=6 5, b=5) | AffineGelu(W=6 5, b=5) | x=4,6 | 3 * 0.044 => 0.044 |
#   WRONG z: (1 + 0.044 | lines 14 to 18 | not float64
# right LayerNorm(gamma=6, beta=6) | LayerNorm(gamma=6, beta=6) | x=4,6 | | right | not float64 |
#   not other
# planted LayerNorm(gamma=6, beta=6) | LayerNorm(gamma=6, beta=6) | x=4,6 | dvar / n => dvar |
#   WRONG xc: dxc = | is dxc | not float64
class AffineGelu:
    "gelu(x @ W + b) with the tanh formula."
    def __init__(self, W, b):
        self.W = W
        self.b = b
    def forward(self, x):
        z = x @ self.W + self.b
        u = np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)
        t = np.tanh(u)
        self.x, self.z, self.t = x, z, t
        return 0.5 * z * (1 + t)
    def backward(self, dout):
        z, t = self.z, self.t
        dt = 0.5 * dout * z
        du = dt * (1 - t**2)
        dz = 0.5 * dout * (1 + t)
        dz = dz + du * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * z**2)
        self.dW = self.x.T @ dz
        self.db = dz.sum(axis=0)
        return dz @ self.W.T
class LayerNorm:
    def __init__(self, gamma, beta, eps=1e-5):
        self.gamma, self.beta, self.eps = gamma, beta, eps
    def forward(self, x):
        mu = x.mean(axis=-1, keepdims=True)
        self.xc = x - mu
        var = (self.xc**2).mean(axis=-1, keepdims=True)
        self.istd = 1 / np.sqrt(var + self.eps)
        self.xhat = self.xc * self.istd
        return self.gamma * self.xhat + self.beta
    def backward(self, dy):
        n = dy.shape[-1]
        self.dgamma = (dy * self.xhat).sum(axis=0)
        self.dbeta = dy.sum(axis=0)
        dxhat = dy * self.gamma
        distd = (dxhat * self.xc).sum(axis=-1, keepdims=True)
        dvar = -0.5 * distd * self.istd**3
        dxc = dxhat * self.istd + 2 * self.xc * dvar / n
        dmu = -dxc.sum(axis=-1, keepdims=True)
        return dxc + dmu / n

# right RMSNorm(g=6) | RMSNorm(g=6) | x=4,6 | | right | not float64 | not other
# planted RMSNorm(g=6) | RMSNorm(g=6) | x=4,6 | (ms + self.__eps) ** -1.5 => ms ** -1.5 |
#   WRONG ms: dms = | wrong line is | not float64
# right SwiGLU(W_gate=6 8, W_up=6 8) | SwiGLU(W_gate=6 8, W_up=6 8) | x=4,6 | | right |
#   not float64 | not other
# planted SwiGLU(W_gate=6 8, W_up=6 8) | SwiGLU(W_gate=6 8, W_up=6 8) | x=4,6 |
#   dout * act => dout * sig | WRONG up: dup = | wrong line is | not float64
class RMSNorm:
    def __init__(self, g, eps=1e-5):
        self.params = [g]
        self.grads = [np.zeros_like(g)]
        self.__eps = eps
    def forward(self, x):
        (g,) = self.params
        ms = np.mean(x * x, axis=1, keepdims=True)
        r = 1.0 / np.sqrt(ms + self.__eps)
        n = x * r
        self.cache = (x, ms, r, n)
        return n * g
    def backward(self, dout):
        (g,) = self.params
        x, ms, r, n = self.cache
        dg = np.sum(dout * n, axis=0)
        dn = dout * g
        dr = np.sum(dn * x, axis=1, keepdims=True)
        dms = dr * -0.5 * (ms + self.__eps) ** -1.5
        dx = dn * r + dms * 2 * x / x.shape[1]
        self.grads[0][...] = dg
        return dx
class SwiGLU:
    def __init__(self, W_gate, W_up):
        self.params = [W_gate, W_up]
        self.grads = [np.zeros_like(p) for p in self.params]
    def forward(self, x):
        W_gate, W_up = self.params
        gate = np.dot(x, W_gate)
        up = np.dot(x, W_up)
        sig = 1 / (1 + np.exp(-gate))
        act = gate * sig
        self.cache = x, up, sig, act
        return act * up
    def backward(self, dout):
        W_gate, W_up = self.params
        x, up, sig, act = self.cache
        dup = dout * act
        dact = dout * up
        dgate = dact * (sig + act * (1 - sig))
        self.grads[1][...] = np.dot(x.T, dup)
        self.grads[0][...] = np.dot(x.T, dgate)
        dx = np.dot(dup, W_up.T)
        dx += np.dot(dgate, W_gate.T)
        return dx

# right TwoLayerNet(6, 8, 5) | TwoLayerNet(6, 8, 5) | x=4,6 | | right | not float64 | not other
# planted TwoLayerNet(6, 8, 5) | TwoLayerNet(6, 8, 5) | x=4,6 | (1 - h**2) => h * (1 - h) |
#   WRONG a: da = | wrong line is | not float64
# right Attention(6, 3) | Attention(6, 3) | x=4,6 | | right | not float64 | not other
# planted Attention(6, 3) | Attention(6, 3) | x=4,6 | dk = ds.T @ q => dk = ds @ q | WRONG k: dk = |
#   first wrong line is | not float64
class TwoLayerNet:
    def __init__(self, input_size, hidden_size, output_size):
        self.params = {"b1": np.zeros(hidden_size)}
        self.params["W1"] = np.random.randn(input_size, hidden_size)
        self.params["W2"] = np.random.randn(hidden_size, output_size)
        self.grads = {}
    def forward(self, x):
        p = self.params
        a = x.dot(p["W1"]) + p["b1"]
        h = np.tanh(a)
        self.cache = (x, h)
        return h.dot(p["W2"])
    def backward(self, dscores):
        x, h = self.cache
        self.grads["W2"] = h.T.dot(dscores)
        dh = dscores.dot(self.params["W2"].T)
        da = dh * (1 - h**2)
        self.grads["W1"] = x.T.dot(da)
        self.grads["b1"] = np.sum(da, axis=0)
        return da.dot(self.params["W1"].T)
class Attention:
    "One causal head over one sequence, x of shape (T, D)."
    def __init__(self, d_model, d_head):
        self.d_head = d_head
        self.grads = {}
        draw = np.random.randn
        self.params = {k: draw(d_model, d_head) for k in ("Wq", "Wk", "Wv")}
    def _scale(self):
        return 1.0 / np.sqrt(self.d_head)
    def forward(self, x):
        q, k, v = (x @ each for each in self.params.values())
        s = q @ k.T * self._scale()
        s = np.where(np.tri(len(s)) > 0, s, -1e9)
        e = np.exp(s - s.max(axis=1, keepdims=True))
        p = e / e.sum(axis=1, keepdims=True)
        self.cache = x, q, k, v, p
        return p @ v
    def backward(self, dout):
        x, q, k, v, p = self.cache
        dp = dout @ v.T
        dv = p.T @ dout
        ds = p * (dp - (dp * p).sum(axis=1, keepdims=True))
        dq = ds @ k * self._scale()
        dk = ds.T @ q * self._scale()
        self.grads["Wq"] = x.T @ dq
        self.grads["Wk"] = x.T @ dk
        self.grads["Wv"] = x.T @ dv
        P = self.params
        return dq @ P["Wq"].T + dk @ P["Wk"].T + dv @ P["Wv"].T

# right TiedAutoencoder(6, 3) | TiedAutoencoder(6, 3) | x=4,6 | | right | not float64 | not other
# planted TiedAutoencoder(6, 3) | TiedAutoencoder(6, 3) | x=4,6 | += self.x => = self.x |
#   WRONG W: self.W.grad = self.x.T | is dW | not float64
# right BatchNorm1d(6) | BatchNorm1d(6) | x=4,6 | | right | not float64 | not other
# planted BatchNorm1d(6) | BatchNorm1d(6) | x=4,6 | -(dnorm => (dnorm | WRONG std: dstd = (dnorm |
#   wrong line is | not float64
class Parameter:
    def __init__(self, data):
        self.data = data
        self.grad = np.zeros_like(data)
class Module:
    def __init__(self):
        self.training = True
class TiedAutoencoder(Module):
    def __init__(self, n_in, n_hid):
        super().__init__()
        self.W = Parameter(np.random.uniform(-0.5, 0.5, (n_in, n_hid)))
    def forward(self, x):
        self.x = x
        z = x @ self.W.data
        self.h = 1.0 / (1.0 + np.exp(-z))
        return self.h @ self.W.data.T
    def backward(self, dy):
        self.W.grad += dy.T @ self.h
        dh = dy @ self.W.data
        dz = dh * self.h * (1.0 - self.h)
        self.W.grad += self.x.T @ dz
        return dz @ self.W.data.T
class BatchNorm1d(Module):
    def __init__(self, num_features, eps=1e-5):
        super().__init__()
        self.gamma = Parameter(np.ones(num_features))
        self.eps = eps
        self.running_mean = np.zeros(num_features)
    def forward(self, x):
        mean = x.mean(0)
        self.running_mean = 0.9 * self.running_mean + 0.1 * mean
        self.diff = x - mean
        var = (self.diff**2).mean(0)
        self.std = np.sqrt(var + self.eps)
        self.norm = self.diff / self.std
        return self.gamma.data * self.norm
    def backward(self, dy):
        self.gamma.grad += (dy * self.norm).sum(0)
        dnorm = dy * self.gamma.data
        dstd = -(dnorm * self.diff).sum(0) / self.std**2
        dvar = dstd / (2 * self.std)
        ddiff = dnorm / self.std + dvar * 2 * self.diff / len(dy)
        return ddiff - ddiff.mean(0)

# right ResidualMLP(6, 8) | ResidualMLP(6, 8) | x=4,6 | | right | not float64 | not other
# planted ResidualMLP(6, 8) | ResidualMLP(6, 8) | x=4,6 | dm = dy * self.alpha => dm = dy |
#   WRONG m: dm = | wrong line is | not float64
# right PreNormMLP(6, 8) | PreNormMLP(6, 8) | x=4,6 | | right | not float64 | not other
# planted PreNormMLP(6, 8) | PreNormMLP(6, 8) | x=4,6 | dy.sum(ax => dy.mean(ax | WRONG layers.1.b |
#   b is wrong, which no line of this backward assigns | not float64
class Linear:
    def __init__(self, n_in, n_out):
        self.W, self.b = np.random.randn(n_in, n_out), np.zeros(n_out)
    def forward(self, x):
        self.x = x
        return x @ self.W + self.b
    def backward(self, dy):
        self.dW, self.db = self.x.T @ dy, dy.sum(axis=0)
        return dy @ self.W.T
class Softplus:
    def forward(self, x):
        self.x = x
        return np.log1p(np.exp(x))
    def backward(self, dy):
        return dy / (1 + np.exp(-self.x))
class Norm:
    def forward(self, x):
        self.r = np.sqrt((x**2).mean(axis=1, keepdims=True))
        self.n = x / self.r
        return self.n
    def backward(self, dy):
        return (dy - self.n * (dy * self.n).mean(axis=1, keepdims=True)) / self.r
class ResidualMLP:
    def __init__(self, dim, hidden):
        self.fc1, self.act, self.fc2 = Linear(dim, hidden), Softplus(), Linear(hidden, dim)
        self.alpha = np.full(dim, 0.1)
    def forward(self, x):
        self.m = self.fc2.forward(self.act.forward(self.fc1.forward(x)))
        return x + self.alpha * self.m
    def backward(self, dy):
        self.dalpha = (dy * self.m).sum(axis=0)
        dm = dy * self.alpha
        return dy + self.fc1.backward(self.act.backward(self.fc2.backward(dm)))
class PreNormMLP:
    def __init__(self, dim, hidden):
        self.layers = [Norm(), Linear(dim, hidden), Softplus(), Linear(hidden, dim)]
    def forward(self, x):
        h = x
        for layer in self.layers:
            h = layer.forward(h)
        return x + h
    def backward(self, dy):
        dh = dy
        for layer in reversed(self.layers):
            dh = layer.backward(dh)
        return dy + dh

# right SoftmaxGate(w=6 6, b=6) | SoftmaxGate(w=6 6, b=6) | x=4,6 | | right | not float64 |
#   not other
# planted SoftmaxGate(w=6 6, b=6) | SoftmaxGate(w=6 6, b=6) | x=4,6 |
#   share).sum(-1 => share).sum(0 | WRONG logits: inner = | is dlogits | not float64
# right PositionalScale(pos=7 5, log_scale=5) | PositionalScale(pos=7 5, log_scale=5) | x=3,4,5 |
#   | right | not float64 | not other
# planted PositionalScale(pos=7 5, log_scale=5) | PositionalScale(pos=7 5, log_scale=5) | x=3,4,5 |
#   d_scale * self => d_scale + self | WRONG log_scale: d_log_scale = | wrong line is |
#   not float64
class SoftmaxGate:
    "Multiply every feature by its share of attention."
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
    "Positions are added, then each channel is scaled by exp(log_scale); x is (B, T, C)."
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

# right HardSwishDense(6, 5) | HardSwishDense(6, 5) | inputs=4,6; lr=0.1 | | right | not float64 |
#   not other
# planted HardSwishDense(6, 5) | HardSwishDense(6, 5) | inputs=4,6; lr=0.1 |
#   d_inputs = d_z @ self.weights.T\n        self.weights -= lr * d_weights =>
#   self.weights -= lr * d_weights\n        d_inputs = d_z @ self.weights.T |
#   WRONG inputs: self.weights -= | is dinputs | not float64
# right Highway(Wt=6 6, Wh=6 6) | Highway(Wt=6 6, Wh=6 6) | x=4,6; lr=0.1 | | right | not float64 |
#   not other
# planted Highway(Wt=6 6, Wh=6 6) | Highway(Wt=6 6, Wh=6 6) | x=4,6; lr=0.1 |
#   grad * (h - x) => grad * h | WRONG t: dt = | wrong line is | not float64
def sigmoid(z):
    return 1 / (1 + np.exp(-z))
class HardSwishDense:
    def __init__(self, n_inputs, n_outputs):
        self.weights = 0.7 * np.random.randn(n_inputs, n_outputs)
    def forward(self, inputs):
        self.inputs = inputs
        self.z = inputs @ self.weights
        self.gate = np.minimum(np.maximum(self.z + 3, 0), 6) / 6
        return self.z * self.gate
    def backward(self, grad, lr):
        inside = (self.z > -3) & (self.z < 3)
        d_gate = grad * self.z
        d_z = grad * self.gate + d_gate * inside / 6
        d_weights = self.inputs.T @ d_z
        d_inputs = d_z @ self.weights.T
        self.weights -= lr * d_weights
        return d_inputs
class Highway:
    def __init__(self, Wt, Wh):
        self.Wt, self.Wh = Wt, Wh
    def forward(self, x):
        t = sigmoid(x @ self.Wt)
        h = np.tanh(x @ self.Wh)
        self.cache = (x, t, h)
        return t * h + (1 - t) * x
    def backward(self, grad, lr=0.1):
        x, t, h = self.cache
        dt = grad * (h - x)
        dh = grad * t
        dzt = dt * t * (1 - t)
        dzh = dh * (1 - h * h)
        dx = grad * (1 - t) + dzt @ self.Wt.T + dzh @ self.Wh.T
        self.Wt = self.Wt - lr * (x.T @ dzt)
        self.Wh = self.Wh - lr * (x.T @ dzh)
        return dx

# right ResidualDropout(scale=6) | ResidualDropout(scale=6) | x=4,6 | | right | not float64 |
#   not other
# planted ResidualDropout(scale=6) | ResidualDropout(scale=6) | x=4,6 |
#   da = dd * self.mask => da = dd | WRONG a: da = | wrong line is | not float64
# right DropConnect(W=6 5, b=5) | DropConnect(W=6 5, b=5) | x=4,6 | | right | not float64 |
#   not other
# planted DropConnect(W=6 5, b=5) | DropConnect(W=6 5, b=5) | x=4,6 |
#   db = dz.sum(axis=0) => db = dz | WRONG b: db = | the sum over axis 0 is missing | not float64
class ResidualDropout:
    "x + scale * dropout(tanh(x))"
    def __init__(self, scale, p=0.4):
        self.scale, self.p = scale, p
    def forward(self, x):
        self.mask = (np.random.rand(*x.shape) >= self.p) / (1 - self.p)
        a = np.tanh(x)
        self.a, self.d = a, a * self.mask
        return x + self.scale * self.d
    def backward(self, dy):
        self.dscale = np.sum(dy * self.d, axis=0)
        dd = dy * self.scale
        da = dd * self.mask
        return dy + da * (1 - self.a**2)
class DropConnect:
    "A linear layer that loses weights instead of activations."
    def __init__(self, W, b, keep=0.6, seed=3):
        self.W, self.b, self.keep = W, b, keep
        self.rng = np.random.default_rng(seed)
    def forward(self, x):
        self.x = x
        self.m = self.rng.binomial(1, self.keep, size=self.W.shape) / self.keep
        self.Wm = self.W * self.m
        z = x @ self.Wm + self.b
        self.out = np.where(z > 0, z, 0.1 * z)
        return self.out
    def backward(self, dout):
        dz = np.where(self.out > 0, dout, 0.1 * dout)
        self.db = dz.sum(axis=0)
        dWm = self.x.T @ dz
        self.dW = dWm * self.m
        return dz @ self.Wm.T

# right CrossEntropy() | CrossEntropy() | logits=12,3; targets=12:-1..3 | | right | not float64 |
#   not other
# planted CrossEntropy() | CrossEntropy() | logits=12,3; targets=12:-1..3 |
#   /= self.count => /= len(self.targets) | WRONG scaled: dscaled /= | is dscaled | not float64
# right RatingLoss() | RatingLoss() | scores=4,6; ratings=4,6:0..6 | | right | not float64 |
#   not other
# planted RatingLoss() | RatingLoss() | scores=4,6; ratings=4,6:0..6 |
#   2 * self.err * self.seen => 2 * self.err | WRONG err: derr = | wrong line is | not float64
class CrossEntropy:
    def forward(self, logits, targets):
        scaled = logits / 1.5
        scaled = scaled - scaled.max(axis=1, keepdims=True)
        logp = scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))
        self.valid = targets != -1
        self.rows = np.flatnonzero(self.valid)
        self.targets = targets
        self.probs = np.exp(logp)
        self.count = len(self.rows)
        return -logp[self.rows, targets[self.rows]].sum() / self.count
    def backward(self):
        dscaled = self.probs.copy()
        dscaled[self.rows, self.targets[self.rows]] -= 1
        dscaled[~self.valid] = 0
        dscaled /= self.count
        return dscaled / 1.5
class RatingLoss:
    "Mean squared error of 1 + 4 sigmoid(score) against ratings; a rating of 0 is missing."
    def forward(self, scores, ratings):
        self.seen = (ratings != 0).astype(float)
        self.sig = 1 / (1 + np.exp(-scores))
        self.pred = 1 + 4 * self.sig
        self.err = self.pred - ratings
        return (self.err**2 * self.seen).sum() / self._total()
    def backward(self):
        derr = 2 * self.err * self.seen / self._total()
        dpred = derr
        dsig = 4 * dpred
        return dsig * self.sig * (1 - self.sig)
    def _total(self):
        return max(self.seen.sum(), 1.0)

# right ConvPool(W=3 2 3) | ConvPool(W=3 2 3) | x=2,10 | | right | not float64 | not other
# planted ConvPool(W=3 2 3) | ConvPool(W=3 2 3) | x=2,10 |
#   self.dW[f] += dconv => self.dW[f] = dconv | WRONG W: self.dW[f] = | is dW | not float64
# right CharRNN(4, 5) | CharRNN(4, 5) | ids=7:0..4 | | right | not float64 | not other
# planted CharRNN(4, 5) | CharRNN(4, 5) | ids=7:0..4 | da @ self.U.T => da @ self.U |
#   WRONG E: dh_next = da @ | is dE | not float64
class ConvPool:
    "1-d convolution, x (C, L) with weights (F, C, K), then max-pooling in pairs."
    def __init__(self, W):
        self.W = W
    def forward(self, x):
        F, C, K = self.W.shape
        n = x.shape[1] - K + 1
        conv = np.zeros((F, n))
        for f in range(F):
            for i in range(n):
                conv[f, i] = np.sum(x[:, i : i + K] * self.W[f])
        self.x, self.n = x, n
        self.first = conv[:, ::2] > conv[:, 1::2]
        return np.maximum(conv[:, ::2], conv[:, 1::2])
    def backward(self, dout):
        F, C, K = self.W.shape
        dconv = np.zeros((F, self.n))
        dconv[:, ::2] = dout * self.first
        dconv[:, 1::2] = dout * ~self.first
        self.dW = np.zeros_like(self.W)
        dx = np.zeros_like(self.x)
        for f in range(F):
            for i in range(self.n):
                self.dW[f] += dconv[f, i] * self.x[:, i : i + K]
                dx[:, i : i + K] += dconv[f, i] * self.W[f]
        return dx
class CharRNN:
    def __init__(self, vocab, hidden):
        self.E = np.random.randn(vocab, hidden)
        self.U = np.random.randn(hidden, hidden)
    def forward(self, ids):
        self.ids = ids
        self.hs = [np.zeros(len(self.U))]
        for i in ids:
            self.hs.append(np.tanh(self.E[i] + self.hs[-1] @ self.U))
        return np.stack(self.hs[1:])
    def backward(self, dhs):
        self.dE, self.dU = np.zeros_like(self.E), np.zeros_like(self.U)
        dh_next = 0
        for t in reversed(range(len(self.ids))):
            dh = dhs[t] + dh_next
            da = dh * (1 - self.hs[t + 1] ** 2)
            np.add.at(self.dE, self.ids[t], da)
            self.dU += np.outer(self.hs[t], da)
            dh_next = da @ self.U.T
"""
