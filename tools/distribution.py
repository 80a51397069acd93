"""What setup.cfg cannot say about wheels and source distributions; it names these classes."""

import re
from pathlib import Path

from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ".ci", ".github", "npgpt", "tests", "tools"


class Metadata(egg_info):
    """README.md as an index can show it, and a source distribution whose tests run."""

    def finalize_options(self):
        super().finalize_options()
        metadata = self.distribution.metadata
        metadata.long_description = with_absolute_links(
            metadata.long_description, metadata.project_urls["Source"]
        )

    def find_sources(self):
        super().find_sources()
        for folder in SOURCES:
            self.filelist.graft(folder)
        self.filelist.global_exclude("*.py[co]")


class Build(build_py):
    """The package, and in it what its messages name of tools/; see `tool` in npgpt/files.py."""

    def run(self):
        super().run()
        tools = ROOT / "tools"
        files = [
            *tools.glob("examples/**/*.py"),
            *tools.glob("examples/*.toml"),
            tools / "peft_adapter.py",
        ]
        for file in () if self.editable_mode else files:
            target = Path(self.build_lib, "npgpt", file.relative_to(ROOT))
            target.parent.mkdir(parents=True, exist_ok=True)
            self.copy_file(str(file), str(target))


def with_absolute_links(text, repository):
    """Return a Markdown text whose links and pictures of files in this repository are URLs.

    repository: its URL on GitHub.
    """

    def replace(found):
        start, path = found.groups()
        kind = "raw" if start.startswith("!") else "blob"
        return f"{start}({repository}/{kind}/main/{path})" if (ROOT / path).exists() else found[0]

    return re.sub(r"(!?\[[^\]]*\])\(([\w./-]+)\)", replace, text)
