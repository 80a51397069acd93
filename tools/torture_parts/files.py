"""Damaged files: a command that reads one must refuse it in one line, or work, and need little
memory.

In some cases a link, a pipe or a folder replaces the file: the command must write nothing outside,
and must not hang.
"""

import hashlib
import json
import os
import re
import shutil
import struct
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from torture_parts.running import complaints, must_work, run
from torture_parts.runs import ANEW, TINY, WORK, must_end, new_folder

import npgpt
from tests.helpers.tokenizers import byte_pairs, word_pieces

LORA = Path(__file__).resolve().parents[1] / "examples/lora_block.py"
PRESET = Path(npgpt.__file__).parent / "training/presets/char-cpu.toml"
FLOOR = 32 << 20  # bytes that a command may need in addition to ten times the file's size
DEEP = "[" * 2000 + "]" * 2000
NASTY = [
    "null",
    "true",
    "false",
    "NaN",
    "-Infinity",
    "nan",
    "1979-05-27",
    "[]",
    "{}",
    "[[1]]",
    '{"a": 1}',
    "{a = 1}",
    "-1",
    "0",
    "1",
    "2",
    "0.5",
    "-0.0",
    "1e308",
    "1e400",
    "1e-320",
    "1" + "0" * 25,
    "9" * 400,
    "9" * 5000,
    '""',
    '"x"',
    '"gpt2"',
    '"\\ud800"',
    '"../../x"',
    '"/etc/passwd"',
    '"/dev/zero"',
    '"\\u0000"',
    '"\\u001b[31m\\n"',
    f'"{"x" * 100_000}"',
    "'''x\ny'''",
    DEEP,
    '{"a":' * 2000 + "1" + "}" * 2000,
]
VALUE = r'"(?:[^"\\]|\\.)*"|[\w.+-]+'
PIECES = [
    re.compile(pattern.encode())
    for pattern in (  # in JSON, TOML or Python: what to damage
        VALUE,
        rf'"[^"]*"\s*:\s*(?:{VALUE}|[\[{{])\s*,?',
        r"\{[^{}]*\}|\[[^][]*\]",
        r"[^\n]+\n",
    )
]
NASTY_NUMBERS = ["-{}", "{}0", "{}.5", "{}e9", '"{}"', "{}1"]

TOKENS = f"{TINY} --corpus tokens --out-dir new/run --max-iters 1"
NEW = f"{TINY} --corpus text.txt --out-dir new/run --max-iters 1"
TUNED = f"{WORK} --corpus text.txt --out-dir new/run --max-iters 1"
RESUMED = f"train --resume --out-dir out --max-iters 3 {WORK}"
RUN = [
    "info out",
    "eval out",
    "eval out --which latest",
    "export out --out new/it",
    "sample out --max-new-tokens 2",
    "sample out --max-new-tokens 2 -n 2",
    RESUMED,
    f"train --init-from out {TUNED}",
]
MODEL = [
    "info model",
    "eval model --corpus text.txt",
    "sample model --max-new-tokens 2",
    "export model --out new/it",
    f"train --init-from model {TUNED}",
]
OUT = [*RUN, "plot out", f"train {TINY} --corpus text.txt --out-dir out --max-iters 1 --overwrite"]
TOKENIZER = [
    *MODEL,
    f"train --tokenizer hf:model {NEW}",
    "data prepare text.txt --tokenizer hf:model/tokenizer.json --out new/it",
]
FAMILIES = ["wordpiece", "bpe"]
READERS = {
    "char": OUT,
    "char-model": MODEL,
    "shards": MODEL,  # folder -> commands that read it
    **{name: ["eval out --corpus tokens", f"train {TOKENS}"] for name in ("tokens", "documents")},
    "text": [f"train {NEW}", "data prepare text.txt --tokenizer char --out new/it"],
    "preset": ["info --preset preset.toml", f"train --preset preset.toml {NEW}"],
    "exercise": ["exercise"],
    "lora": [f"train --init-from model --block {LORA} --freeze *.weight,*.bias {TUNED}"],
    **{name: RUN for name in FAMILIES},
    **{f"{name}-model": TOKENIZER for name in FAMILIES},
}
PROGRESS = {"linear level 1": {"solved": "2026-01-01", "tries": 2, "hints": {"dweight": 1}}}


def setup_files(folder):
    """Make the folders of READERS. Returns [(folder, command)]."""
    train_tokenizers(folder)
    for name in ("char", *FAMILIES):
        tokenizer = name if name == "char" else f"hf:../{name}.json"
        must_end(f"{ANEW['rare']} --max-iters 2 --tokenizer {tokenizer}", new_folder(folder / name))
        must_end("plot out", folder / name)
        model = new_folder(folder / f"{name}-model")
        must_end(f"export ../{name}/out --out model", model)
        if name in FAMILIES:  # as on the hub, without npgpt's own file
            (model / "model/npgpt_tokenizer.json").unlink()
    split_into_shards(shutil.copytree(folder / "char-model", folder / "shards") / "model")
    shutil.copytree(folder / "char-model", folder / "lora")
    for name, flag in (("tokens", ""), ("documents", r"--documents \n")):
        tokens = shutil.copytree(folder / "char", folder / name)
        must_end(f"data prepare text.txt --tokenizer char --out tokens {flag}", tokens)
    new_folder(folder / "text")
    lines = [line for line in PRESET.read_text().splitlines(keepends=True) if " = " in line]
    (new_folder(folder / "preset") / "preset.toml").write_text("".join(lines))
    (new_folder(folder / "exercise") / "exercises").mkdir()
    (folder / "exercise/exercises/progress.json").write_text(json.dumps({"exercises": PROGRESS}))
    return [(folder / name, command) for name, commands in READERS.items() for command in commands]


def train_tokenizers(folder):
    """Write a tokenizer.json of each family."""
    word_pieces(folder / "wordpiece.json")
    byte_pairs(folder / "bpe.json")


def split_into_shards(model):
    tensors = list(load_file(model / "model.safetensors").items())
    shards = {"model-0.safetensors": dict(tensors[:5]), "model-1.safetensors": dict(tensors[5:])}
    for file, part in shards.items():
        save_file(part, model / file)
    (model / "model.safetensors.index.json").write_text(
        json.dumps(
            {
                "metadata": {},
                "weight_map": {name: file for file, part in shards.items() for name in part},
            }
        )
    )
    (model / "model.safetensors").unlink()


def files(rng, number, folder, cases):
    """Run every command once on undamaged files; then damage or replace one file of a random
    command.
    """
    whole = number < len(cases)
    here, line = cases[number] if whole else rng.choice(cases)
    shutil.copytree(here, folder, dirs_exist_ok=True)
    paths = sorted(here.rglob("*"))
    if not whole and rng.random() < 0.1:
        # Not out and new, which the command line names.
        file = rng.choice(
            [path for path in paths if path.is_file() or path.parent != here]
        ).relative_to(here)
        kind = put_instead(rng, here / file, folder / file)
        return complaints(run(line, folder), f"{line.split()[0]}, {file.name} is a {kind}")
    file = rng.choice([path for path in paths if path.is_file()]).relative_to(here)
    data = (here / file).read_bytes()
    data = data if whole else damage(rng, file.name, data)
    (folder / file).write_bytes(data)
    state = folder / file.parent / "state.json"
    if file.parent.name.startswith("step-") and file.name != "state.json" and rng.random() < 0.6:
        content = json.loads(state.read_bytes())  # as if damaged before its digest was computed
        content["sha256"][file.name] = hashlib.sha256(data).hexdigest()
        state.write_text(json.dumps(content))
    result, what = run(line, folder), f"{line.split()[0]}, {file.name}"
    needed = (
        whole or file.name == "metrics.jsonl" and line.startswith("train")
    )  # it can do without metrics
    found = (must_work if needed else complaints)(result, what)
    if not whole and result.memory > FLOOR + 10 * len(data):  # at first, Numba may compile
        found.append(f"{what}: more than ten times its size in memory | {result.memory >> 20} MiB")
    return found


def put_instead(rng, original, path):
    """Replace a file or folder by something else, and return its kind. original: a copy outside of
    the folder.
    """
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    targets = {
        "link": original,
        "broken link": original.with_name("new"),
        "link to a device": "/dev/zero",
    }
    kind = rng.choice([*targets, "pipe", "folder"])
    if kind in targets:
        path.symlink_to(targets[kind])
    else:
        os.mkfifo(path) if kind == "pipe" else path.mkdir()
    return kind


def damage(rng, name, data):
    """Return the bytes of a file, damaged in a way that fits its format."""
    if rng.random() < 0.3 or name.endswith((".bin", ".txt", ".py")):
        return damage_bytes(rng, data)
    if not name.endswith(".safetensors"):
        return damage_text(rng, data)
    (length,) = struct.unpack("<Q", data[:8])
    header, numbers = data[8 : 8 + length], data[8 + length :]
    if rng.random() < 0.2:
        return (
            data[: 8 + length]
            + (np.frombuffer(numbers, np.float32) * 10.0 ** rng.randrange(1, 39)).tobytes()
        )
    header = (damage_text if rng.random() < 0.8 else damage_bytes)(rng, header)
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + numbers


def damage_text(rng, data):
    """Replace, delete, repeat or swap a value, member, container or line; the result may be valid
    JSON.
    """
    pieces = list(rng.choice(PIECES).finditer(data))
    if not pieces:
        return rng.choice(NASTY).encode()
    piece, other = (rng.choice(pieces) for _ in range(2))
    middle = rng.choice(
        [
            b"",
            piece[0] * 2,
            piece[0] + b", " + piece[0],
            other[0],
            *(rng.choice(NASTY).encode() for _ in range(6)),
            rng.choice(NASTY_NUMBERS).encode().replace(b"{}", piece[0]),
        ]
    )
    return data[: piece.start()] + middle + data[piece.end() :]


def damage_bytes(rng, data):
    i, n = rng.randrange(len(data) + 1), rng.choice([1, 2, 8, 64, 1000])
    if rng.random() < 0.2 and data:
        flipped = bytearray(data)
        for _ in range(rng.choice([1, 1, 2, 20])):
            flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(flipped)
    brackets = rng.choice([b"[", b"(", b'{"":', b'"', b"-", b"\0"]) * 3000
    middle = rng.choice([b"", bytes(n), rng.randbytes(n), data[i : i + n] * 100, brackets])
    return rng.choice(
        [
            data[:i],
            data[i:],
            b"",
            rng.randbytes(rng.randrange(2000)),
            data[:i] + middle + data[i:],
            data[:i] + middle + data[i + n :],
        ]
    )
