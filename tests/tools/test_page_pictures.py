"""The README's pictures show the study page of today."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
pictures = pytest.importorskip("page_pictures", reason="needs Pillow and playwright", exc_type=ImportError)


def test_the_pictures_show_what_the_page_shows():
    shown = pictures.digest().encode() in pictures.PICTURE.read_bytes()
    assert shown, "the page has changed: run python tools/page_pictures.py"
    assert pictures.ANIMATION.stat().st_size <= pictures.MOST_BYTES
