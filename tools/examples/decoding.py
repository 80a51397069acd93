"""Ways to write that npgpt has no option for, of about ten lines each, with the model "tiny".

python tools/examples/decoding.py
"""

import numpy as np

import npgpt


def log_softmax(logits):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def min_p(tokens, logits, p=0.1):
    """Keep tokens at least p times as likely as the likeliest one: a logits_processor."""
    return np.where(logits < logits.max(axis=-1, keepdims=True) + np.log(p), -np.inf, logits)


def only(allowed):
    """Return a logits_processor that allows some token ids alone."""

    def processor(tokens, logits):
        return np.where(np.isin(np.arange(logits.shape[-1]), allowed), logits, -np.inf)

    return processor


def beam_search(model, prompt, n, beams=4):
    """Return the likeliest n tokens that follow a prompt, (T,) ids, and their log-probability."""
    reader, total, V = model.reader(1), np.zeros((1, 1)), model.config.vocab_size
    logits = reader.read(prompt[None])[:, -1]
    for _ in range(n):
        scores = (total + log_softmax(logits)).ravel()  # (rows V,)
        best = np.argsort(-scores)[:beams]
        total, rows, tokens = scores[best, None], best // V, best % V
        reader.reorder(rows)
        logits = reader.read(tokens[:, None])[:, -1]
    return reader.tokens[0, len(prompt) :], total[0, 0]


def speculative(model, draft, prompt, n, guesses=4):
    """Return the greedy n tokens of a model, of which a smaller one guesses several at a time."""
    reader, tokens = model.reader(1), prompt
    reader.read(prompt[None, :-1])
    while (missing := len(prompt) + n - len(tokens)) > 0:
        guessed = draft.generate(tokens[None], min(guesses, missing), temperature=0.0)
        guess = guessed[0, len(tokens) :]
        likeliest = reader.read(guessed[:, len(tokens) - 1 : -1])[0].argmax(axis=-1)
        right = int(np.cumprod(guess == likeliest).sum())  # and the token after them is known
        reader.back(max(0, len(guess) - right - 1))
        tokens = np.concatenate([tokens, likeliest[: right + 1]])
    return tokens[len(prompt) :]


if __name__ == "__main__":
    model, tokenizer = npgpt.load("tiny")
    prompt = tokenizer.encode("ROMEO:\n").astype(int)
    tokens, score = beam_search(model, prompt, 30)
    print(f"beam search, {score:.2f} nats:", tokenizer.decode(tokens))
    print("greedy, guessed:", tokenizer.decode(speculative(model, model, prompt, 30)))
    capitals = only(tokenizer.encode("AEIORST \n"))
    for name, processor in (("min-p", min_p), ("in capitals", capitals)):
        out = model.generate(prompt[None], 30, logits_processor=processor)
        print(f"{name}:", tokenizer.decode(out[0, len(prompt) :]))
