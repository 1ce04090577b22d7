"""The command that takes pictures of every page: each tab and each fold, in both themes, as wide as was asked."""

from pathlib import Path

import pytest
from PIL import Image, ImageStat
from playwright.sync_api import Browser

from benchmarks.pictures import index, look
from tests.browser.furnished import Furnished

pytestmark = pytest.mark.browser
TABS = ("", "-tab-2", "-tab-3", "-tab-4", "-unfolded")


def test_a_page_is_taken_with_its_tabs_and_unfolded_in_both_themes(
    browser: Browser, furnished: Furnished, tmp_path: Path
) -> None:
    page = browser.new_page()
    url = furnished.url + furnished.things["a checkpoint"]
    names = look(page, url, "A checkpoint", tmp_path, widths=[400])
    page.close()
    assert names == [f"a-checkpoint{tab}" for tab in TABS]
    light, dark = ([taken(tmp_path / f"{name}-400-{theme}.png") for name in names] for theme in ("light", "dark"))
    assert all(image.width == 400 for image in (*light, *dark))
    assert all(brightness(a) > 200 and brightness(b) < 80 for a, b in zip(light, dark, strict=True))
    assert light[-1].height > light[-2].height
    assert len({image.tobytes() for image in light}) == len(names)
    assert index(names).count("<img") == 6 * len(names)


def taken(file: Path) -> Image.Image:
    return Image.open(file).convert("RGB")


def brightness(image: Image.Image) -> float:
    return ImageStat.Stat(image.convert("L")).mean[0]
