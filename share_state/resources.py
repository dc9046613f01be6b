"""Files that are not code: in the package where it was installed as a wheel, beside it in a checkout."""

from pathlib import Path


def folder(name: str) -> Path:
    """The folder `schemas` or `conf`."""
    package = Path(__file__).parent
    installed = package / f"_{name}"
    return installed if installed.is_dir() else package.parent / name
