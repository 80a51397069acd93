"""Losses: forward(scores, targets) is a number, backward() the gradient of the scores."""

import numpy as np


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
    """Mean squared error of 1 + 4 sigmoid(score) against ratings; a rating of 0 is missing."""

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
