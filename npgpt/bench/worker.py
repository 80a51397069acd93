"""The process of one side: it makes its model, then does as many steps as each line of its input asks for.

Lines of JSON: first the job {"side", "kind", "shape", "threads", "folder"}, then any number of {"steps": n}, each
answered by {"seconds": [n numbers], "results": [n values], "peak_memory": bytes}; or by {"error": text}, and the end.
"""

import json
import os
import sys
import time

import numpy as np
import threadpoolctl

from npgpt.api import GPT
from npgpt.bench import shapes
from npgpt.bench.machine import describe_machine, peak_memory
from npgpt.engine.threads import in_threads
from npgpt.model.parameters import parameter_shapes
from npgpt.training.adamw import AdamW

LR = 3e-4
PRODUCTS = ((2048, 2048, 2048), (1024, 768, 3072))      # (m, k, n) of the matrix products that the floor is made of


def make_step(side, shape, threads, folder):
    """The function () -> JSON value that is one step of a side, whatever its work is."""
    match side, shape:
        case "machine", _:
            return describe_machine
        case "weights", _:
            return lambda: write_weights(shape, folder)
        case "gemm", shapes.Generation():
            return reading(shape, threads)
        case "gemm", _:
            return products(threads)
        case "npgpt", shapes.Generation():
            return generation(folder, shape, threads)
        case "npgpt", _:
            return training(shape, threads)
    from npgpt.bench import torch_gpt

    torch_gpt.use_threads(threads)
    if side == "transformers":
        return torch_gpt.generation(folder, shape)
    return torch_gpt.training(shape, LR, compiled=side == "compile")


def training(shape, threads):
    """npgpt's training step; its result is the loss."""
    model = GPT(shape.config, shapes.SEED, threads=threads)
    optimizer = AdamW(model.params, LR, threads=threads)
    batches = shape.batches()

    def step():
        loss, grads = model.loss_and_grads(*next(batches))
        optimizer.step(grads, max_norm=1.0)
        return loss

    return step


def generation(folder, shape, threads):
    """npgpt's greedy generation with the weights in a folder; its result is the tokens."""
    model = GPT.from_pretrained(folder, threads=threads)
    return lambda: model.generate(shape.prompt(), shape.new_tokens, temperature=0.0).tolist()


def write_weights(shape, folder):
    """Write random weights for generation into a folder, as npgpt and transformers read them."""
    model = GPT(shape.config, shapes.SEED)
    for name, array in model.params.items():
        if name.startswith("h.") and array.ndim == 2:
            array *= 10.0           # with fresh blocks the text is one token for ever, and any two programs agree on it
    model.save_pretrained(folder)


def products(threads):
    """Matrix products as fast as NumPy does them; the result is the best rate, in operations a second."""
    rng = np.random.default_rng(shapes.SEED)
    operands = [(rng.random((m, k), np.float32), rng.random((k, n), np.float32),
                 [np.empty((m, n), np.float32) for _ in range(threads)]) for m, k, n in PRODUCTS]

    def step():
        rates = []
        for a, b, outs in operands:
            flops = 2 * a.size * b.shape[1]
            with threadpoolctl.threadpool_limits(threads, user_api="blas"):
                rates.append(flops / timed(np.matmul, a, b, out=outs[0]))
            with threadpoolctl.threadpool_limits(1, user_api="blas"):
                seconds = timed(in_threads, lambda out, a=a, b=b: np.matmul(a, b, out=out), outs)
                rates.append(threads * flops / seconds)
        return max(rates)

    return step


def reading(shape, threads):
    """A matrix-vector product over as many values as a pass reads weights; the result is its seconds."""
    sizes = {name: np.prod(size) for name, size in parameter_shapes(shape.config).items()}
    n_read = sum(sizes.values()) - sizes["wpe.weight"]          # of positions only a row is read
    matrix = np.ones((int(n_read) // shape.n_embd, shape.n_embd), np.float32)
    vector = np.ones(shape.n_embd, np.float32)

    def step():
        with threadpoolctl.threadpool_limits(threads, user_api="blas"):
            return timed(np.matmul, matrix, vector)

    return step


def timed(function, *arguments, **options):
    """The seconds that a call takes."""
    began = time.perf_counter()
    function(*arguments, **options)
    return time.perf_counter() - began


def answer(step, n):
    """n steps, timed one by one."""
    seconds, results = [], []
    for _ in range(n):
        began = time.perf_counter()
        results.append(step())
        seconds.append(time.perf_counter() - began)
    return {"seconds": seconds, "results": results, "peak_memory": peak_memory()}


def main():
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())       # what libraries print is no answer
    step = None
    try:
        for line in sys.stdin:
            request = json.loads(line)
            if step is None:
                shape = getattr(shapes, request["kind"])(**request["shape"]) if request["kind"] else None
                step = make_step(request["side"], shape, request["threads"], request["folder"])
            else:
                print(json.dumps(answer(step, request["steps"])), file=answers, flush=True)
    except Exception as error:      # whatever it is, the side that fails says so and the other sides go on
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answers, flush=True)


if __name__ == "__main__":
    main()
