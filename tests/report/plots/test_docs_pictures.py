"""The pictures of README and docs are those that the code makes."""

import importlib.util
import re
from pathlib import Path
from xml.etree import ElementTree

from tests.profiles import nightly

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs" / "pictures"
DRAWN_BY_HAND = {"fold.svg"}


def _texts(path: Path) -> list[str]:
    return [
        "".join(text.itertext()) for text in ElementTree.parse(path).getroot().iter("{http://www.w3.org/2000/svg}text")
    ]


@nightly("draws all pictures of the docs")
def test_the_script_makes_every_picture_that_is_kept_and_they_say_the_same(tmp_path: Path):
    spec = importlib.util.spec_from_file_location("make_pictures", FOLDER / "make.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.make(tmp_path) == 0
    made, kept = ({path.name: _texts(path) for path in folder.glob("*.svg")} for folder in (tmp_path, FOLDER))
    assert made == {name: texts for name, texts in kept.items() if name not in DRAWN_BY_HAND}
    assert all(texts for texts in made.values())
    assert all(path.stat().st_size < 150_000 for path in FOLDER.glob("*.svg"))


def test_every_picture_that_a_page_shows_is_there_and_each_is_shown():
    shown = set()
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).is_file(), f"{page.name}: {target}"
            shown.add(Path(target).name)
    assert shown == {path.name for path in FOLDER.glob("*.svg")}
