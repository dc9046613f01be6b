"""Tables of a store that only Spark can put in order: copied to a scratch folder, as Spark has no client for stores."""

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from share_state.errors import InputError
from share_state.wire.store_path import STREAM, StorePath

_AT_ONCE = 4


class TableCopies:
    """Copies of what lies in stores, in a scratch folder that goes when the process ends; local paths stay."""

    def __init__(self) -> None:
        self._copied: dict[str, str] = {}
        self._scratch: Path | None = None

    def local(self, address: str) -> str:
        """The path of a copy of a file, or of a folder with everything below it.

        Raises:
            InputError: if the store says no, or the scratch folder cannot take it.
        """
        if "://" not in address:
            return address
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="share-state-copy-"))
            atexit.register(shutil.rmtree, self._scratch, ignore_errors=True)
        root = StorePath.at(address)
        target = self._scratch / str(len(self._copied)) / root.name
        files = [(root, target)]
        if not root.is_file():
            below = [file for file in root.rglob("*") if file.is_file()]
            files = [(file, target / file.relative_to(root)) for file in below]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(_copy, *zip(*files, strict=True)))
        self._copied[str(target)] = address
        return str(target)

    @contextmanager
    def told_by_address(self) -> Iterator[None]:
        """Lets messages name what was copied, not the copies."""
        try:
            yield
        except InputError as error:
            said = str(error)
            for path, address in self._copied.items():
                said = said.replace(path, address)
            raise InputError(said) from None


def _copy(file: StorePath, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with file.open("rb") as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy, STREAM)
    except OSError as error:
        raise InputError(
            f"{file}: cannot be copied to {target.parent} ({error.strerror}); set TMPDIR to a disk with room for it"
        ) from None
