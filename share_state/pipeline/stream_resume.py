"""Resumes a stream from what its warehouse or its checkpoint holds, or begins it with the state of another run."""

import logging
import re
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from pyarrow.fs import FileSelector, FileSystem

from share_state.delta.reader import delete_folder, open_filesystem, warehouse_errors
from share_state.errors import ShareStateError, WarehouseError
from share_state.fold.checkpoint import CHECKPOINT_TABLE, FoldCheckpoint
from share_state.pipeline.plan import read_checkpoint
from share_state.pipeline.resume import LastRun
from share_state.pipeline.stream_run import StreamRun, last_stream_run
from share_state.pipeline.stream_state import state_bytes
from share_state.pipeline.task import CUTOFF, FINDINGS
from share_state.sources.log_partition import STATE_TOPIC
from share_state.stores.object_stores import read_errors
from share_state.stores.paths import absolute_address

INITIAL = "initial"
"""Folder of the initial states, in the checkpoint folder of a stream."""
_WAREHOUSE = "share_state_warehouse"
"""File in the checkpoint folder with the path or address of the warehouse."""
_LAYOUT, _LATEST_LAYOUT = "share_state_layout", "3"
"""File in the checkpoint folder: how state is stored there; and how `spark/stored_log.py` stores it."""
_TASKS = "share_state_tasks"
"""File in the checkpoint folder: among how many tasks the state is spread, of which its keys are made."""
_QUERY_ID = "[0-9a-f]{16}"

_LOG = logging.getLogger("share_state")


def open_stream(warehouse: str, checkpoint: str, inputs: tuple[str, ...]) -> tuple[StreamRun, str]:
    """Resume a stream if both its warehouse and its checkpoint exist; else begin a new one, and log why.

    Args:
        warehouse: folder of the tables.
        checkpoint: folder of the stream's checkpoints, each in a folder that is named by the query.
        inputs: the inputs of the stream.
    Returns:
        What it has committed, and the folder of its checkpoint.
    Raises:
        WarehouseError: if the checkpoint belongs to a stream of other inputs, or of another warehouse.
        InputError: if the checkpoint is no folder, or cannot be written.
    """
    run = last_stream_run(warehouse)
    place = absolute_address(warehouse)
    with read_errors(checkpoint, "give a folder that can be written"), warehouse_errors(checkpoint):
        filesystem, folder = open_filesystem(checkpoint)
        listed = filesystem.get_file_info(FileSelector(folder, allow_not_found=True))
        known = [info.base_name for info in listed if re.fullmatch(_QUERY_ID, info.base_name)]
        if strangers := [info.base_name for info in listed if info.base_name not in known]:
            raise WarehouseError(f"{checkpoint}: holds something else ({strangers[0]}); give an empty folder")
        if run is not None and run.query in known:
            if tuple(absolute_address(one) for one in run.inputs) != inputs:
                raise WarehouseError(
                    f"{checkpoint}: belongs to a stream of {' '.join(run.inputs)}; give another --checkpoint and --out"
                )
            if _read_text(filesystem, f"{folder}/{run.query}/{_LAYOUT}") == _LATEST_LAYOUT:
                _repeat_last(filesystem, f"{folder}/{run.query}", run)
                return run, f"{checkpoint.rstrip('/')}/{run.query}"
            _LOG.info(
                "%s: another release has stored the state otherwise; the stream starts over", checkpoint
            )
        for name in known:
            # None if an earlier version began it.
            other = _read_text(filesystem, f"{folder}/{name}/{_WAREHOUSE}")
            if other is not None and absolute_address(other) != place:
                raise WarehouseError(
                    f"{checkpoint}: belongs to the stream that writes {other}; give another folder"
                )
        query = uuid.uuid4().hex[:16]
        filesystem.create_dir(f"{folder}/{query}", recursive=True)
        if run is not None and run.query not in known:
            _LOG.info("%s: the checkpoint of the stream in %s is gone; it starts over", checkpoint, warehouse)
        elif run is None and any(_last_committed(filesystem, f"{folder}/{name}") >= 0 for name in known):
            _LOG.info("%s: the tables of the stream in %s are gone; it starts over", warehouse, checkpoint)
        for name in known:
            filesystem.delete_dir(f"{folder}/{name}")
        for name, text in ((_WAREHOUSE, place), (_LAYOUT, _LATEST_LAYOUT)):
            _write_text(filesystem, f"{folder}/{query}/{name}", text)
    folder = f"{checkpoint.rstrip('/')}/{query}"
    return _begin_from_last_run(warehouse, folder, StreamRun(query, inputs=inputs)), folder


@contextmanager
def discard_unused(warehouse: str, folder: str, run: StreamRun) -> Iterator[None]:
    """Delete the checkpoint of a stream that fails before it has committed a micro-batch.

    Args:
        warehouse, folder, run: as given to and returned by `open_stream`.
    """
    try:
        yield
    except BaseException:
        with suppress(OSError, ShareStateError):
            if run.batch < 0 and ((last := last_stream_run(warehouse)) is None or last.query != run.query):
                delete_folder(folder)
        raise


def kept_tasks(checkpoint: str, tasks: int) -> int:
    """Among how many tasks the state of a stream is spread: as when it began.

    Args:
        checkpoint: folder of the stream's checkpoint.
        tasks: for a stream that begins now.
    """
    with warehouse_errors(checkpoint):
        filesystem, folder = open_filesystem(checkpoint)
        # A run that was killed before Spark began may have left an empty one.
        if known := _read_text(filesystem, f"{folder}/{_TASKS}"):
            return int(known)
        _write_text(filesystem, f"{folder}/{_TASKS}", str(tasks))
    return tasks


def _last_committed(filesystem: FileSystem, checkpoint: str) -> int:
    """The last micro-batch that Spark's checkpoint in a folder notes as done; -1 for none."""
    listed = filesystem.get_file_info(FileSelector(f"{checkpoint}/commits", allow_not_found=True))
    return max((int(info.base_name) for info in listed if info.base_name.isdigit()), default=-1)


def _repeat_last(filesystem: FileSystem, checkpoint: str, run: StreamRun) -> None:
    """Let Spark repeat the last micro-batch if the tables do not have it, as after a kill before it was done.

    A stream that was stopped before it had caught up may have left rows to make, and without new
    records Spark runs no other micro-batch.
    """
    if (last := _last_committed(filesystem, checkpoint)) > run.batch:
        for name in (str(last), f".{last}.crc"):
            with suppress(FileNotFoundError):
                filesystem.delete_file(f"{checkpoint}/commits/{name}")


def _read_text(filesystem: FileSystem, path: str) -> str | None:
    """The text of a file; None if there is none."""
    try:
        with filesystem.open_input_stream(path) as file:
            return file.read().decode()
    except FileNotFoundError:
        return None


def _write_text(filesystem: FileSystem, path: str, text: str) -> None:
    """Write a file with a text."""
    with filesystem.open_output_stream(path) as file:
        file.write(text.encode())


def open_local_stream(
    warehouse: str, inputs: tuple[str, ...], *, has_positions: bool = False
) -> tuple[StreamRun, dict[int, FoldCheckpoint]]:
    """Resume the stream that wrote a warehouse in its own process, or begin one, and log why.

    Args:
        warehouse: folder of the tables.
        inputs: the inputs of the stream.
        has_positions: whether they are segments, in which to go on at a position.
    Returns:
        What it has committed, and log partition -> its state.
    Raises:
        WarehouseError: if a stream of other inputs, or one on Spark, writes the warehouse.
    """
    run, last = last_stream_run(warehouse), None
    if run is not None:
        last = LastRun.of(warehouse, None)
        if last is None or not last.tables.holds(CHECKPOINT_TABLE):
            raise WarehouseError(
                f"{warehouse}: a stream on Spark keeps its tables here, and its state in its checkpoint; "
                "go on with --master and --checkpoint, or give another --out"
            )
        if tuple(absolute_address(one) for one in run.inputs) != inputs:
            raise WarehouseError(
                f"{warehouse}: belongs to a stream of {' '.join(run.inputs)}; give another --out"
            )
        if not (last.damaged or last.changed or last.changed_share_partitions(last.checkpoints)):
            return run, dict(_states_of(last))
        _LOG.warning("%s: the state of the stream was changed by another program; it starts over", warehouse)
    begun = StreamRun(uuid.uuid4().hex[:16], inputs=inputs)
    if run is not None or (last := _continuable(warehouse)) is None:
        return begun, {}
    states = dict(_states_of(last))
    if not has_positions:
        states = {number: _without_position(state) for number, state in states.items()}
    return _begun_from(warehouse, begun, last, {state.mark.topic_id for state in states.values()}), states


def _states_of(last: LastRun) -> Iterator[tuple[int, FoldCheckpoint]]:
    """The number of each log partition of a run, and its state."""
    files = [file["path"] for file in last.tables.files(CHECKPOINT_TABLE)]
    for name, row in last.checkpoints.items():
        yield int(name.rpartition("-")[2]), read_checkpoint(row, files, name)


def _without_position(state: FoldCheckpoint) -> FoldCheckpoint:
    """A state for a stream that has no segments, in which to resume at a position."""
    return replace(state, mark=replace(state.mark, segment=-1, position=-1, size=0))


def _continuable(warehouse: str) -> LastRun | None:
    """The last run of a warehouse if a stream can continue from it: an audit."""
    last = LastRun.of(warehouse, None)
    if (
        last is None
        or not last.checkpoints
        or last.damaged
        or last.changed
        or last.logs.keys() != dict(last.tables.run["progress"]).keys()
    ):
        return None
    if {"WRONG_PARTITION", "SPLIT_KEY"} & {*last.tables.read(FINDINGS, columns=["rule"])["rule"].to_pylist()}:
        # Its tables have rows of keys that belong to another log partition, which a stream leaves out.
        return None
    if changed := last.changed_share_partitions(last.checkpoints):
        _LOG.warning(
            "%s: the state of %s was changed by another program; the stream begins anew",
            warehouse,
            min(changed),
        )
        return None
    return last


def _begun_from(
    warehouse: str, run: StreamRun, last: LastRun, topic_ids: Collection[str | None]
) -> StreamRun:
    """A stream that begins with the state of another run."""
    cutoffs = last.tables.read(CUTOFF, columns=["topic", "partition", "live_share_partitions"]).to_pylist()
    live = {f"{row['topic']}-{row['partition']}": row["live_share_partitions"] for row in cutoffs}
    latest = f"{last.tables.run['command']} {last.tables.run['run_id']}"
    _LOG.info("%s: begins with the state of its %s", warehouse, latest)
    notes = (f"began with the state of {latest}",)
    known = {topic_id or "" for topic_id in topic_ids}
    topic_id = known.pop() if len(known) == 1 else ""
    return replace(run, progress=last.logs, share_partitions=live, notes=notes, begun_from=topic_id)


def _begin_from_last_run(warehouse: str, folder: str, run: StreamRun) -> StreamRun:
    """The stream with the state of the last run of a warehouse in files of `folder`, if a fold can continue from it."""
    if (last := _continuable(warehouse)) is None:
        return run
    place, topic_ids = f"{folder}/{INITIAL}", set[str | None]()
    with warehouse_errors(place):
        filesystem, path = open_filesystem(place)
        filesystem.create_dir(path, recursive=True)
        for number, found in _states_of(last):
            state = _without_position(found)
            topic_ids.add(state.mark.topic_id)
            with filesystem.open_output_stream(f"{path}/{number}") as stored:
                stored.write(state_bytes(f"{STATE_TOPIC}-{number}", state))
    return _begun_from(warehouse, run, last, topic_ids)
