"""The source distribution has the tests; the wheel has what its messages name; an index can show
the README.
"""

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = "LICENSE", "README.md", "pyproject.toml", "setup.cfg"
FOLDERS = ".ci", ".github", "npgpt", "tests", "tools"
EXAMPLES = [path for path in ROOT.glob("tools/examples/**/*.*") if path.suffix != ".pyc"]

pytestmark = pytest.mark.slow


def built(kind, folder):
    """Build the "sdist" or the "wheel" of the sources in a folder; return its path."""
    program = f"from setuptools import build_meta; print(build_meta.build_{kind}('dist'))"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "dist" / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The folders of an unpacked source distribution, and of the wheel that was built from it."""
    here = tmp_path_factory.mktemp("with-hyphens-site-packages")
    ignore = shutil.ignore_patterns("__pycache__")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, here / "checkout" / name, ignore=ignore)
    for name in FILES:
        shutil.copy(ROOT / name, here / "checkout" / name)
    with tarfile.open(built("sdist", here / "checkout")) as file:
        file.extractall(here, filter="data")
    (source,) = here.glob("npgpt-*")
    with zipfile.ZipFile(built("wheel", source)) as file:
        file.extractall(here / "site")
    return source, here / "site"


def test_the_source_distribution_has_all_files(unpacked):
    found = [path for name in FOLDERS for path in (ROOT / name).rglob("*") if path.is_file()]
    files = [path.relative_to(ROOT) for path in found if "__pycache__" not in path.parts]
    assert len(files) > 200
    for path in files + ["LICENSE", "README.md", "pyproject.toml"]:  # setup.cfg gets a section
        assert (unpacked[0] / path).read_bytes() == (ROOT / path).read_bytes()


def test_an_installed_command_names_examples_that_exist(unpacked, tmp_path):
    site = unpacked[1]
    assert len(EXAMPLES) > 10 and not (site / "tests").exists() and not (site / "tools").exists()
    for path in (*EXAMPLES, ROOT / "tools/peft_adapter.py"):
        assert (site / "npgpt" / path.relative_to(ROOT)).read_bytes() == path.read_bytes()
    command = [sys.executable, "-P", "-m", "npgpt", "train", "--help"]
    options = {"env": os.environ | {"PYTHONPATH": str(site), "COLUMNS": "80"}}
    for folder, start in ((tmp_path, f"{site}/npgpt/"), (ROOT, "")):
        helped = subprocess.check_output(command, cwd=folder, text=True, **options)
        named = re.findall(r"\S*tools/examples/\w+\.py", helped)
        assert named == [f"{start}tools/examples/{name}_block.py" for name in ("lora", "modern")]
        assert all((folder / name).exists() for name in named)


def test_an_index_can_show_the_readme(unpacked):
    """Its links and pictures are URLs, with the paths that README.md has; all else is the same."""
    (path,) = unpacked[1].glob("*.dist-info/METADATA")
    metadata = email.message_from_string(path.read_text("utf-8"))
    readme, shown = (ROOT / "README.md").read_text("utf-8"), metadata.get_payload()
    assert re.sub(r"https://github.com/npgpt/npgpt/(raw|blob)/main/", "", shown) == readme
    assert "](https://" in shown and not re.search(r"\]\((?!https://)", shown)
    assert metadata["License-Expression"] == "MIT" and "filelock" not in str(metadata.items())
