"""A stretch of a log partition in memory: its bytes, and where the batches in them are."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

CHUNK = 4 << 20
"""Bytes of segments that are in memory at a time; a larger batch grows the chunk to its own size."""


@dataclass(slots=True)
class Chunk:
    """A stretch of a log partition; its arrays hold until the next chunk is asked for.

    Attributes:
        data: uint8; raw segment bytes, or the bodies of batches where any was compressed.
        batches: BATCH rows in offset order; only rows with trust WHOLE may be looked into.
        why: row of `batches` -> why it cannot be trusted, where the row alone does not say it.
        repeated: batches left out because another copy holds the same bytes; told once, by a chunk without batches.
        records: RECORD rows of the whole batches, where the form of the export has told them already.
        faults: offset -> (Fault, value version, 0 for none) of records whose key and value the form hides but whose
            flaw it tells; `records` holds them with neither.
    """

    data: npt.NDArray[np.uint8]
    batches: np.ndarray
    why: dict[int, str] = field(default_factory=dict)
    repeated: int = 0
    records: np.ndarray | None = None
    faults: dict[int, tuple[int, int]] = field(default_factory=dict)
