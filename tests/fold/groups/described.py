"""What Admin and kafka-share-groups.sh said of the groups of a fixture, read the plain way."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.truth import DATA

EPOCH_WITHOUT_RECORD = {"4.2.1": 0, "4.3.1": 1, "4.4.0": 1}
"""What a broker says of the epochs of a group that was only given offsets: no record tells them."""


@dataclass(frozen=True)
class Scenario:
    """A fixture with logs of `__consumer_offsets`."""

    folder: Path

    @property
    def name(self) -> str:
        return f"{self.release}/{self.folder.name}"

    @property
    def release(self) -> str:
        return self.folder.parent.name

    @property
    def groups(self) -> list[dict[str, Any]]:
        """Rows of describe.json."""
        return json.loads((self.folder / "describe.json").read_text())["shareGroups"]

    @property
    def topic_names(self) -> dict[str, str]:
        """Name by id of the topics that still exist."""
        return {one["topicId"]: one["name"] for one in json.loads((self.folder / "topics.json").read_text())}

    def rows(self, what: str) -> list[dict[str, str]]:
        """Rows of the table that the stock tool printed, cells by column."""
        rows, columns = [], []
        for line in (self.folder / f"kafka-share-groups-describe-{what}.txt").read_text().splitlines():
            if line.startswith("GROUP "):
                columns = line.replace("COORDINATOR (ID)", "COORDINATOR ID").split()
            elif line.strip() and not line.startswith("Share group"):
                rows.append(dict(zip(columns, line.split(), strict=True)))
        return rows


def scenarios() -> list[Scenario]:
    """Fixtures that have logs of `__consumer_offsets`."""
    return [Scenario(path) for path in sorted({found.parent for found in DATA.glob("*/*/__consumer_offsets-*")})]
