"""One warehouse full of trouble, read once."""

from pathlib import Path

import pytest

from share_state.report.audit_data import AuditReport, read_report
from tests.report.made_warehouse import troubled_warehouse


@pytest.fixture(scope="session")
def troubled_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be written to."""
    return troubled_warehouse(tmp_path_factory.mktemp("lake") / "troubled")


@pytest.fixture(scope="session")
def troubled(troubled_folder: Path) -> AuditReport:
    """What its latest audit found."""
    return read_report(str(troubled_folder), "prod-eu")
