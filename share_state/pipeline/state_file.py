"""The checkpoint of a stream without tables: one file with the states of the log partitions, replaced as a whole."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from share_state.delta.reader import open_filesystem, warehouse_errors
from share_state.errors import WarehouseError
from share_state.fold.checkpoint import FoldCheckpoint
from share_state.fold.history import GROUP_OUTCOMES
from share_state.pipeline.stream_state import checkpoint_of, from_ipc, state_bytes, to_ipc
from share_state.pipeline.task import FINDINGS
from share_state.schema.declarations import table_schema
from share_state.sources.log_partition import STATE_TOPIC
from share_state.stores.object_stores import read_errors

_NAME = "share_state_stream"
_FORM = 1
_LOG = logging.getLogger("share_state")


@dataclass(slots=True)
class SavedStream:
    """What a stream without tables goes on from.

    Attributes:
        inputs: its inputs.
        records: data records read.
        states: log partition -> its state.
        findings, outcomes: the tables `findings` and `group_outcomes`.
    """

    inputs: tuple[str, ...]
    records: int = 0
    states: dict[int, FoldCheckpoint] = field(default_factory=dict)
    findings: pa.Table = field(default_factory=lambda: table_schema(FINDINGS).empty_table())
    outcomes: pa.Table = field(default_factory=lambda: table_schema(GROUP_OUTCOMES).empty_table())


class StateFile:
    """Reads and replaces the file in a folder."""

    def __init__(self, folder: str) -> None:
        """Take a folder, which is created if it is missing.

        Raises:
            InputError: if it cannot be written.
        """
        self._folder = folder
        with read_errors(folder, "give a folder that can be written"), warehouse_errors(folder):
            self._filesystem, path = open_filesystem(folder)
            self._filesystem.create_dir(path, recursive=True)
        self._path = f"{path}/{_NAME}"
        self._parts = dict[int, tuple[FoldCheckpoint, bytes]]()

    def read(self, inputs: tuple[str, ...]) -> SavedStream:
        """What an earlier process left; nothing for none, or if another release wrote it.

        Args:
            inputs: those of the stream.
        Raises:
            WarehouseError: if it is of a stream of other inputs.
        """
        with warehouse_errors(self._folder):
            if not self._filesystem.get_file_info(self._path).is_file:
                return SavedStream(inputs)
            with self._filesystem.open_input_stream(self._path) as file:
                data = file.read()
        try:
            head, _, rest = data.partition(b"\n")
            given = json.loads(head)
            view = memoryview(rest)
            parts = dict[str, memoryview]()
            for name, size in given["sizes"].items():
                parts[name], view = view[:size], view[size:]
            if given["form"] != _FORM or len(view):
                raise ValueError(given["form"])
            saved = SavedStream(tuple(given["inputs"]), given["records"])
            saved.findings, saved.outcomes = (
                from_ipc(parts.pop(FINDINGS)),
                from_ipc(parts.pop(GROUP_OUTCOMES)),
            )
            states = {int(name): checkpoint_of(bytes(part)) for name, part in parts.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
            _LOG.warning("%s: its state cannot be read (%s); the stream starts over", self._folder, error)
            return SavedStream(inputs)
        if saved.inputs != inputs:
            raise WarehouseError(
                f"{self._folder}: belongs to a stream of {' '.join(saved.inputs)}; give another --checkpoint"
            )
        saved.states = {number: state for number, state in states.items() if state is not None}
        return saved

    def write(self, saved: SavedStream) -> None:
        """Replace the file.

        Raises:
            WarehouseError: if it cannot be written.
        """
        for number, state in saved.states.items():
            known = self._parts.get(number)
            if known is None or known[0] is not state:
                self._parts[number] = state, state_bytes(f"{STATE_TOPIC}-{number}", state)
        parts: Mapping[str, bytes] = {
            **{str(number): self._parts[number][1] for number in saved.states},
            FINDINGS: to_ipc(saved.findings),
            GROUP_OUTCOMES: to_ipc(saved.outcomes),
        }
        sizes = {name: len(part) for name, part in parts.items()}
        head = {"form": _FORM, "inputs": saved.inputs, "records": saved.records, "sizes": sizes}
        with warehouse_errors(self._folder):
            with self._filesystem.open_output_stream(f"{self._path}.new") as file:
                file.write(b"\n".join((json.dumps(head).encode(), b"".join(parts.values()))))
            self._filesystem.move(f"{self._path}.new", self._path)
