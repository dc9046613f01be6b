"""The package on its way to workers of a cluster: an archive with what a wheel of it holds, unpacked beside a task."""

import atexit
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from share_state import resources

UNPACKED = "share_state_package"
"""The folder in an executor's working directory."""

_PACKAGE = Path(__file__).parents[1]
_ARCHIVES, _PATH = "spark.archives", "spark.executorEnv.PYTHONPATH"


def shipped(conf: Mapping[str, str]) -> dict[str, str]:
    """The settings that bring this package to the workers, which need but a Python with what it depends on.

    Args:
        conf: what the person set; archives and paths of theirs stay.
    """
    folder = Path(tempfile.mkdtemp(prefix="share-state-package-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    archive = _packed(folder / "share_state.zip")
    archives = [one for one in (conf.get(_ARCHIVES), f"{archive.as_uri()}#{UNPACKED}") if one]
    paths = [one for one in (UNPACKED, conf.get(_PATH)) if one]
    return {_ARCHIVES: ",".join(archives), _PATH: ":".join(paths)}


def _packed(archive: Path) -> Path:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for source in sorted(_PACKAGE.rglob("*")):
            if source.is_file() and source.suffix != ".pyc":
                packed.write(source, Path(_PACKAGE.name) / source.relative_to(_PACKAGE))
        for name in ("schemas", "conf"):
            folder = resources.folder(name)
            if folder.parent != _PACKAGE:
                for source in sorted(folder.rglob("*.*")):
                    packed.write(source, Path(_PACKAGE.name, f"_{name}") / source.relative_to(folder))
    return archive
