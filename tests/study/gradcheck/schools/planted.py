"""One mistake in each layer of these files, as in `small_layers.py`: the file, the layer, its
inputs, old => new, the variable whose gradient is wrong first with the line, and what is said.
Indented lines go on.
"""

PLANTED = r"""
selfcache.py | AffineGelu(W=6 5, b=5) | x=4,6 | 3 * 0.044 => 0.044 | WRONG z: (1 + 0.044 |
    lines 22 to 26
selfcache.py | LayerNorm(gamma=6, beta=6) | x=4,6 | dvar / n => dvar | WRONG xc: dxc = |
    is dxc
lists.py | RMSNorm(g=6) | x=4,6 | (ms + self.__eps) ** -1.5 => ms ** -1.5 | WRONG ms: dms = |
    wrong line is
lists.py | SwiGLU(W_gate=6 8, W_up=6 8) | x=4,6 | dout * act => dout * sig | WRONG up: dup = |
    wrong line is
dicts.py | TwoLayerNet(6, 8, 5) | x=4,6 | (1 - h**2) => h * (1 - h) | WRONG a: da = |
    wrong line is
dicts.py | Attention(6, 3) | x=4,6 | dk = ds.T @ q => dk = ds @ q | WRONG k: dk = |
    first wrong line is
modules.py | TiedAutoencoder(6, 3) | x=4,6 | += self.x => = self.x |
    WRONG W: self.W.grad = self.x.T | is dW
modules.py | BatchNorm1d(6) | x=4,6 | -(dnorm => (dnorm | WRONG std: dstd = (dnorm | wrong line is
sublayers.py | ResidualMLP(6, 8) | x=4,6 | dm = dy * self.alpha => dm = dy | WRONG m: dm = |
    wrong line is
sublayers.py | PreNormMLP(6, 8) | x=4,6 | dy.sum(ax => dy.mean(ax | WRONG layers.1.b |
    b is wrong, which no line of this backward assigns
tuples.py | SoftmaxGate(w=6 6, b=6) | x=4,6 | share).sum(-1 => share).sum(0 |
    WRONG logits: inner = | is dlogits
tuples.py | PositionalScale(pos=7 5, log_scale=5) | x=3,4,5 | d_scale * self => d_scale + self |
    WRONG log_scale: d_log_scale = | wrong line is
updates.py | HardSwishDense(6, 5) | inputs=4,6; lr=0.1 |
    d_inputs = d_z @ self.weights.T\n        self.weights -= lr * d_weights =>
    self.weights -= lr * d_weights\n        d_inputs = d_z @ self.weights.T |
    WRONG inputs: self.weights -= | is dinputs
updates.py | Highway(Wt=6 6, Wh=6 6) | x=4,6; lr=0.1 | grad * (h - x) => grad * h |
    WRONG t: dt = | wrong line is
masks.py | ResidualDropout(scale=6) | x=4,6 | da = dd * self.mask => da = dd | WRONG a: da = |
    wrong line is
masks.py | DropConnect(W=6 5, b=5) | x=4,6 | db = dz.sum(axis=0) => db = dz | WRONG b: db = |
    the sum over axis 0 is missing
losses.py | CrossEntropy() | logits=12,3; targets=12:-1..3 |
    /= self.count => /= len(self.targets) | WRONG scaled: dscaled /= | is dscaled
losses.py | RatingLoss() | scores=4,6; ratings=4,6:0..6 |
    2 * self.err * self.seen => 2 * self.err | WRONG err: derr = | wrong line is
loops.py | ConvPool(W=3 2 3) | x=2,10 | self.dW[f] += dconv => self.dW[f] = dconv |
    WRONG W: self.dW[f] = | is dW
loops.py | CharRNN(4, 5) | ids=7:0..4 | da @ self.U.T => da @ self.U | WRONG E: dh_next = da @ |
    is dE
"""
