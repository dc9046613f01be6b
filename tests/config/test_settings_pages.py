"""The example and the page of keys say what the model says."""

import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from docs.reference_pages import BEGIN, END, with_keys, write_keys_page
from share_state.config.loading import ConfigError, load_settings
from share_state.config.model import keys
from share_state.fold.limits import Limits
from share_state.schema import declarations

EXAMPLE = declarations.resource_folder("conf") / "audit.yaml"
PAGE = Path(__file__).parents[2] / "docs/audit-configuration.md"


def uncommented() -> str:
    """The example with the keys that it has commented out."""
    return re.sub(r"^( *)#(?=\w)", r"\1", EXAMPLE.read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_the_example_can_be_used_as_it_is():
    settings = load_settings(str(EXAMPLE), (), {})
    assert (settings.cluster, len(settings.sources), settings.warehouse) == ("prod-eu", 2, "/lake/share_state")
    assert settings.rules["STALE_INDEX"] == "off"
    # Kafka has no limit on the age of an export.
    assert settings.limits.to_limits() == Limits(export_age=36)


def test_the_example_with_every_key_can_be_used_and_has_them_all(write):
    settings = load_settings(write(uncommented()), (), {})
    assert settings.limits.writer_version == "4.4"
    said = set()
    for key in keys():
        *above, last = key.name.split(".")
        sections: list[Any] = [settings]
        for name in above:
            sections = [*chain(*sections)] if name == "N" else [getattr(section, name) for section in sections]
        said |= {key.name for section in sections if last in section.model_fields_set}
    assert said == {key.name for key in keys()}


def test_a_commented_default_is_the_default():
    wrong = []
    for key in keys():
        commented = re.search(rf"^ *#{key.name.rpartition('.')[2]}: (\S+)", EXAMPLE.read_text("utf-8"), re.MULTILINE)
        if commented and key.default not in ("`null`", "`{}`", "`[]`") and f"`{commented[1]}`" != key.default:
            wrong.append(key.name)
    assert wrong == []


def test_the_page_has_the_keys_of_the_model():
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_keys(page), "run: python -m docs.reference_pages"


def test_the_page_says_type_range_default_and_variable():
    row = (
        "| `limits.delivery_count` | a whole number from 1 to 25 | `5` | `SHARE_STATE_LIMITS__DELIVERY_COUNT` |"
        " `group.share.delivery.count.limit` of the cluster |"
    )
    assert row in PAGE.read_text(encoding="utf-8").splitlines()


def test_a_page_is_renewed_between_its_lines(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(f"# Before\n{BEGIN}\nstale row\n{END}\nafter\n", encoding="utf-8")
    write_keys_page(path)
    page = path.read_text(encoding="utf-8")
    assert page.startswith(f"# Before\n{BEGIN}\n\n| key |")
    assert page.endswith(f"|\n\n{END}\nafter\n")
    assert "stale row" not in page
    assert page.count("\n| `") == len(list(keys()))


def test_a_page_without_the_lines_is_refused():
    with pytest.raises(ConfigError, match="its table goes between these two lines"):
        with_keys("# Nothing\n")
