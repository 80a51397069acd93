"""An encoder: hidden states of padded texts, and the gradients of whatever is computed from them.

Train it on targets of your own with `AdamW.step`. `npgpt train` and `Trainer` predict the next
token, which an encoder can see.
"""

import numpy as np

from npgpt import GPT, GPTConfig
from npgpt.data.tokenizers import make_tokenizer

texts = ["To be, or not to be,", "that is the question."]
tokenizer = make_tokenizer("byte")
model = GPT(GPTConfig(vocab_size=tokenizer.vocab_size, block_size=128, causal=False))
ids, seen = tokenizer.batch(texts, 128)  # (B, 128) each; [CLS], [SEP] and [PAD] of a BERT tokenizer
hidden = model.hidden(ids, mask=seen)  # (B, T, C); or floats that are added to the scores
dhidden = np.zeros_like(hidden)
dhidden[:, 0] = 1.0  # what you do with them: here, the sum of the first ones
grads = model.backward(dhidden)
logits, loss = model(ids, np.where(seen, ids, -1), mask=seen)  # so do loss_and_grads and evaluate
