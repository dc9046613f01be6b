"""How numba compiles the kernels and where it caches them.

A kernel is a function over NumPy arrays that numba compiles to machine code. `kernel`, `allocating_kernel`
and `inlined` are the decorators. numba caches a compiled function by
its own source file only, but a kernel includes the code of the kernels that it calls. `KernelCacheLocator`
therefore names the cache folder after the sources of all kernels.
"""

import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import caching, config
from numba.core.ccallback import CFunc
from numba.core.options import DefaultOptions
from numba.core.sigutils import normalize_signature

from share_state.jit.portable import PORTABLE_CPU
from share_state.jit.shared_cache import KernelLocks, SharedCache

KERNEL_PACKAGES = ("fold", "jit", "kafka", "rules", "sources")
"""Packages of share_state whose functions are cached by `KernelCacheLocator`."""

SHIPPED = "_kernels"
"""Folder of the package with compiled kernels, in a folder for their digest: in wheels that were built with
them, and in the archive that a driver sends to its workers."""

_PACKAGE = Path(__file__).parents[1]
_KERNEL_MARKERS = (b"share_state.jit.", b"numba", b"record_rule", b"state_batch_rule")
"""Each source file that defines kernels or parts of them contains one of these texts."""

_NUMBA_LOCATORS = (
    "UserProvidedCacheLocator",
    "InTreeCacheLocator",
    "UserWideCacheLocator",
    "IPythonCacheLocator",
    "ZipCacheLocator",
)


def register_cache_locator() -> None:
    """Add `KernelCacheLocator` in front of numba's own locators, by numba's setting CACHE_LOCATOR_CLASSES (0.62+).

    Later commands then start in under a second; without the setting, numba's own cache is used.
    """
    name = f"{__name__}.{KernelCacheLocator.__name__}"
    configured = getattr(config, "CACHE_LOCATOR_CLASSES", None)
    if configured is None or name in configured:
        return
    defaults = configured or ",".join(one for one in _NUMBA_LOCATORS if hasattr(caching, one))
    config.CACHE_LOCATOR_CLASSES = f"{name},{defaults}"  # pyright: ignore[reportAttributeAccessIssue]


def has_cached_kernels() -> bool:
    """Whether an earlier process compiled kernels of these sources."""
    folder = _kernel_folder()
    return folder is not None and any(folder.rglob("*.nbi"))


def portable_kernels() -> Path | None:
    """The cache folder, whose name is the digest, if it has kernels and they are for every CPU; else None."""
    is_portable = config.CPU_NAME == PORTABLE_CPU  # pyright: ignore[reportAttributeAccessIssue]
    return _kernel_folder() if is_portable and has_cached_kernels() else None


def remove_stale_kernels() -> None:
    """Remove the cached kernels of other versions of the sources."""
    current = _kernel_folder()
    if current is not None and not _is_in_package(current):
        for folder in current.parent.glob("*"):
            if folder != current:
                shutil.rmtree(folder, ignore_errors=True)


@cache
def _kernel_folder() -> Path | None:
    """The cache folder, named after a digest of all kernel sources; None if the kernels stay in memory.

    Where no folder can be written, that of the package if it came with kernels.
    """
    digest = hashlib.blake2b(digest_size=8)
    for source in kernel_sources():
        digest.update(source.read_bytes())
    name = digest.hexdigest()
    root = next(filter(_is_usable, _cache_roots()), None)
    if root is None:
        shipped = _PACKAGE / SHIPPED / name
        return shipped if shipped.is_dir() and all(map(_is_private, _folders(shipped))) else None
    folder = root / "kernels" / name
    _take_shipped(resources.files("share_state") / SHIPPED / name, folder)
    return folder


def _is_in_package(folder: Path) -> bool:
    """Whether a cache folder came with the package, and is only read."""
    return folder.parent == _PACKAGE / SHIPPED


def _folders(folder: Path) -> Iterator[Path]:
    """A folder and those in it."""
    yield folder
    yield from (found for found in folder.rglob("*") if found.is_dir())


def _take_shipped(shipped: Traversable, folder: Path) -> None:
    """Copy the kernels that came with the package to the cache folder, unless it is there."""
    if folder.exists() or not shipped.is_dir():
        return
    partial = None
    # Another process may be first, or the disk full: then kernels are compiled.
    with suppress(OSError):
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".shipped-", dir=folder.parent))
        _copy(shipped, partial)
        partial.rename(folder)
    if partial is not None:
        shutil.rmtree(partial, ignore_errors=True)


def _copy(source: Traversable, folder: Path) -> None:
    for entry in source.iterdir():
        target = folder / entry.name
        if entry.is_dir():
            target.mkdir()
            _copy(entry, target)
        else:
            target.write_bytes(entry.read_bytes())


def kernel_sources() -> Iterator[Traversable]:
    """The modules that define kernels or parts of them, in a fixed order."""
    for package in KERNEL_PACKAGES:
        # A package in an archive of `--py-files` has no path on the disk.
        for source in _sources(resources.files("share_state") / package):
            text = source.read_bytes()
            if any(marker in text for marker in _KERNEL_MARKERS):
                yield source


def _sources(folder: Traversable) -> Iterator[Traversable]:
    """The modules of a package and of the packages in it, in a fixed order."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _sources(entry)
        elif entry.name.endswith(".py"):
            yield entry


def _cache_roots() -> list[Path]:
    """Candidates in order: NUMBA_CACHE_DIR or else the Python environment; then the home directory."""
    configured = os.environ.get("NUMBA_CACHE_DIR")
    return [
        Path(configured if configured else Path(sys.prefix, "share")) / "share-state",
        Path.home() / ".cache" / "share-state",
    ]


def _is_usable(folder: Path) -> bool:
    """Whether this user can write to a folder, and nobody else."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return _is_private(folder)


def _is_private(folder: Path) -> bool:
    """Whether only this user and root can write to a folder: numba unpickles the files in it."""
    try:
        folders = [parent.stat() for parent in (folder, *folder.resolve().parents)]
    except OSError:
        return False
    if any(folder_stat.st_uid not in (os.getuid(), 0) for folder_stat in folders):
        return False
    modes = [folder_stat.st_mode for folder_stat in folders]
    # In a sticky folder such as /tmp, other users cannot replace the folders of this user.
    return (
        not any(mode & stat.S_IWOTH and not mode & stat.S_ISVTX for mode in modes)
        and not modes[0] & stat.S_IWOTH
    )


class KernelCacheLocator:
    """Tells numba where to cache the compiled code of a kernel: the same folder for every copy of the package.

    On a cluster, each job unpacks the package to another path, so the folder does not depend on the source's
    path.
    """

    def __init__(self, kernel: Callable[..., object], source: Path, folder: Path) -> None:
        self._py_file, self._line = str(source), kernel.__code__.co_firstlineno
        self._folder = folder / source.parent.relative_to(_PACKAGE)

    @classmethod
    def from_function(cls, py_func: Callable[..., object], py_file: str) -> "KernelCacheLocator | None":
        """The locator of a function; None to use numba's own locators."""
        source, folder = Path(py_file), _kernel_folder()
        packages = [_PACKAGE / package for package in KERNEL_PACKAGES]
        if folder is None or not any(source.is_relative_to(package) for package in packages):
            return None
        locator = cls(py_func, source, folder)
        if not _is_in_package(folder):
            try:
                locator.ensure_cache_path()
            except OSError:
                return None
        return locator

    def ensure_cache_path(self) -> None:
        """Create the folder."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def get_cache_path(self) -> str:
        """The folder."""
        return str(self._folder)

    def get_source_stamp(self) -> str:
        """Constant: the name of the folder already depends on the sources."""
        return ""

    def get_disambiguator(self) -> str:
        """The part of the file name that distinguishes functions of the same name."""
        return str(self._line)


register_cache_locator()

_FOLDER = _kernel_folder()
_LOCKS = None if _FOLDER is None or _is_in_package(_FOLDER) else KernelLocks(_FOLDER / "lock")
# Kernels that allocate no array need no atomic reference counts: decode and fold take an eighth less time.
_WITHOUT_COUNTS = {"_nrt": False} if hasattr(DefaultOptions, "_nrt") else {}
# Set explicitly, because a kernel inherits the option of the kernel that calls it.
_WITH_COUNTS = dict.fromkeys(_WITHOUT_COUNTS, True)


def _compiled(function: Callable[..., object], **options: Any) -> Any:
    made: Any = njit(**options)(function)
    if _FOLDER is not None:
        made._cache = SharedCache(function, _LOCKS)
    return made


kernel: Any = partial(_compiled, nogil=True, **_WITHOUT_COUNTS)
"""Decorator: compile a function that neither allocates nor returns arrays. Compiling fails if it does."""

allocating_kernel: Any = partial(_compiled, nogil=True, **_WITH_COUNTS)
"""Decorator: compile a function that allocates or returns arrays."""

inlined: Any = partial(_compiled, inline="always")
"""Decorator: compile a function into each of its callers."""


class _Callback(CFunc):
    """A compiled function with a shared cache."""

    def enable_caching(self) -> None:
        """Use the cache of all processes."""
        self._cache = SharedCache(self._pyfunc, _LOCKS)  # pyright: ignore[reportAttributeAccessIssue]


def first_class(function: Callable[..., object], signature: Any) -> Any:
    """Compile a function for one signature.

    Kernels that take it as an argument do not depend on which one they get.
    """
    made = _Callback(function, normalize_signature(signature), {}, {"nogil": True})
    if _FOLDER is not None:
        made.enable_caching()
    try:
        made.compile()
    finally:
        if isinstance(made._cache, SharedCache):
            made._cache.release()
    return made
