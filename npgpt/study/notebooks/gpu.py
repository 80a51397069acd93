"""The cells of `npgpt notebook gpu`: npgpt on the GPU at hand, and on the CPU of a machine without one."""

CELLS = [("markdown", """\
# npgpt on a GPU

The lines of GPT-2 that you study, run on this machine's GPU by CuPy and by XLA: a gradient, a training run, and the
benchmark. Run all cells from the top. Without a GPU each cell says so in one line and goes on with the CPU."""),
         ("code", """\
WHERE = "npgpt"         # or the folder of a clone, if your package index does not have npgpt
import importlib.util, os, re, shutil, subprocess, sys
from pathlib import Path

says = os.popen("nvidia-smi").read() if shutil.which("nvidia-smi") else ""
cuda = re.search(r"CUDA[\\w ]*Version: *(\\d+)", says)                # the newest that the driver can run
print(os.popen("nvidia-smi -L").read() if cuda else "no GPU here: every cell below runs on the CPU instead")"""),
         ("markdown", "## Install\n\nCuPy and JAX with CUDA's libraries, several GB, for the driver's CUDA version."),
         ("code", """\
if cuda:
    n = 13 if int(cuda[1]) >= 13 else 12
    %pip install -q "{WHERE}[cuda{n},xla-cuda{n},plot]" pytest
elif not importlib.util.find_spec("npgpt"):
    %pip install -q "{WHERE}[xla,plot]"
else:
    print("no GPU, so nothing to install")"""),
         ("markdown", """\
## The same gradient twice

The same weights and tokens on the CPU and on the GPU, in float32. CuPy runs the lesson's lines, XLA
compiles them. Sums in another order differ by about 1e-7 here; 1e-3 would be a bug."""),
         ("code", """\
import numpy as np
from npgpt import GPT, GPTConfig, UserError
from npgpt.arrays import to_host

config = GPTConfig(vocab_size=65, block_size=64, n_layer=4, n_head=4, n_embd=128)
tokens = np.random.default_rng(0).integers(0, 65, (12, 65))
batch = tokens[:, :-1], tokens[:, 1:]                               # idx, targets
loss, grads = GPT(config).loss_and_grads(*batch)

def compare(**how):
    try:
        model = GPT(config, **how)
    except UserError as error:
        return print(error)
    other_loss, others = model.loss_and_grads(*batch)
    worst = max(float(abs(to_host(others[name]) - grads[name]).max()) for name in grads)
    print(model.engine.description)
    print(f"loss {float(other_loss):.6f}, on the CPU {loss:.6f}; gradients differ by {worst:.1e}")

compare(device="gpu") if cuda else print("no GPU, so no CuPy: the CPU's kernels compute the same lines")"""),
         ("code", 'compare(kernels="xla", device="gpu" if cuda else "cpu")'),
         ("markdown", """\
## Train

On a GPU nanoGPT's "baby GPT" (10.7 million parameters) by CuPy, on a CPU a small model. The text is TinyShakespeare;
without a network the first line says what replaces it. At the end the model writes a sample."""),
         ("code", """\
from IPython.display import Image, Markdown, display
from npgpt.cli.main import main

STEPS = 1000 if cuda else 50                    # the whole run on a GPU: 5000
options = "--preset char-gpu --device gpu" if cuda else "--preset char-cpu --eval-interval 25 --eval-iters 5"
main(f"train --out-dir gpu-run --overwrite --max-iters {STEPS} {options}".split())
picture = Path("gpu-run", "loss.png")
display(Image(picture, width=700)) if picture.exists() else print("no loss curve: it needs a run, and matplotlib")"""),
         ("markdown", "## Benchmark\n\nTraining steps of GPT-2 124M and the baby GPT, beside PyTorch if it is there."),
         ("code", """\
import npgpt

tools, tables = Path(npgpt.__file__).parents[1] / "tools", Path("gpu-check").resolve()
tools = tools if tools.exists() else Path(WHERE, "tools").resolve()
rows = ["gpu"] if cuda else ["A", "--sides", "npgpt", "--rounds", "1"]
if sys.platform == "linux" and tools.exists():
    subprocess.run([sys.executable, tools / "bench", *rows, "--out-dir", tables], stdout=subprocess.DEVNULL)
    display(Markdown(filename=tables / "bench.md"))
else:
    print("the benchmark needs Linux and a clone of npgpt: let WHERE be its folder, and run all cells again")"""),
         ("markdown", """\
## Tell us

**npgpt had never run on a GPU when this was written.** The last cell runs the tests that need one, and a whole
training run. Please send the folder `gpu-check` (`environment.txt`, the logs, the benchmark's tables) to the
maintainers, above all if something failed."""),
         ("code", """\
if cuda and tools.exists():
    os.environ["PYTHON"] = sys.executable
    os.environ.setdefault("NPGPT_DATA_DIR", str(Path("data").resolve()))    # where TinyShakespeare is now
    subprocess.run(["bash", tools / "gpu_check.sh", tables, "tests", "train"])
else:
    print("tools/gpu_check.sh needs a GPU and a clone of npgpt")""")]
