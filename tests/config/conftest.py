"""A configuration file for each test that wants one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.config.settings_text import in_yaml


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], str]:
    """Writes text, bytes or settings to audit.yaml in the working directory, and returns that name."""
    monkeypatch.chdir(tmp_path)

    def written(content: Any) -> str:
        raw = content if isinstance(content, bytes | str) else in_yaml(content)
        Path("audit.yaml").write_bytes(raw if isinstance(raw, bytes) else raw.encode())
        return "audit.yaml"

    return written
