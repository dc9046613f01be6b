"""The state of a log partition in Spark's state store: the whole, and what micro-batches have changed since.

To store the whole each time would cost a micro-batch of few records as much as one of many. What
micro-batches have changed, whose rows are not made yet, is stored beside it.
"""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, ValueState

from share_state.errors import ShareStateError
from share_state.fold.checkpoint import FoldCheckpoint
from share_state.pipeline.stream_changes import UnwrittenChanges
from share_state.pipeline.stream_fold import Step
from share_state.pipeline.stream_state import change_bytes, changed_state, checkpoint_of, state_bytes
from share_state.sources.log_partition import STATE_TOPIC
from share_state.sources.partition_count import PartitionCount
from share_state.spark.local_copies import keep_copy, kept_copy

MOST_CHANGED = 0.5
"""Bytes of changes that are stored for each byte of the whole, before the whole is stored again."""
_BETWEEN_TOKENS = ","
_HELD_SECONDS = 300.0
"""How long a worker holds a state that it was not asked for: another worker may have the log partition now."""


@dataclass(slots=True)
class _Held:
    """The latest state of a log partition.

    Attributes:
        tokens: of the whole in the store and of each change since; empty for none.
        state: the state.
        whole, changed: bytes of the whole and of the changes in the store.
        unwritten: what micro-batches have changed, whose rows are not made yet; None for nothing.
        unwritten_token: of what the store has of it; empty for nothing.
        base: token of the state since when it counts; it is read when rows are made.
        state_partitions: number of partitions of the topic, if a source has said it.
        used: `time.monotonic` when it was used last.
    """

    tokens: list[str]
    state: FoldCheckpoint | None
    whole: int = 0
    changed: int = 0
    unwritten: UnwrittenChanges | None = None
    unwritten_token: str = ""
    base: str = ""
    state_partitions: int | None = None
    used: float = 0.0

    @property
    def count(self) -> PartitionCount:
        """How many partitions the topic has, as far as known."""
        return PartitionCount(self.state_partitions)

    def changes(self, state_partitions: int | None) -> UnwrittenChanges:
        """What is unwritten, or no changes since the state.

        Args:
            state_partitions: the number of partitions that the call states; None if it does not.
        """
        return self.unwritten or UnwrittenChanges(self.state, state_partitions or self.state_partitions)


held = dict[int, _Held]()
"""Log partition -> its state: Spark gives a worker process many micro-batches."""


@dataclass(frozen=True, slots=True)
class _CopiedValue:
    """Bytes in Spark's state, of which a worker leaves a copy for others of its machine.

    Attributes:
        state: the value in Spark's state.
        kind: its name among the values of a log partition.
    """

    state: ValueState
    kind: str

    def get(self, partition: int, token: str) -> bytes:
        """The bytes of the latest update, which had this token; empty for none."""
        name = self._name(partition)
        if (copy := kept_copy(name, token)) is not None:
            return copy
        stored = self.state.get()
        value = b"" if stored is None else bytes(stored[0])
        keep_copy(name, token, value)
        return value

    def update(self, partition: int, token: str, value: bytes) -> None:
        """Replace the bytes."""
        self.state.update((value,))
        keep_copy(self._name(partition), token, value)

    def clear(self) -> None:
        """Remove the bytes."""
        self.state.clear()

    def _name(self, partition: int) -> str:
        return f"{partition}-{self.kind}"


class StoredLog:
    """Reads and writes the state of the log partition whose records Spark has given."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._whole = _CopiedValue(handle.getValueState("log", "state binary"), "whole")
        self._changes = handle.getMapState("changed", "token string", "state binary")
        self._unwritten = handle.getValueState("unwritten", "base string, changes binary")
        # The state since when it counts stays as it is while it grows.
        self._base = _CopiedValue(handle.getValueState("base", "state binary"), "base")
        self._token = handle.getValueState("token", "tokens string, unwritten string, state_partitions int")

    def get(
        self,
        partition: int,
        initial: Callable[[int], FoldCheckpoint | None] = lambda _: None,
        *,
        makes_rows: bool = True,
    ) -> _Held:
        """The state after the last micro-batch, and what is unwritten.

        Args:
            partition: number of the log partition.
            initial: gives the state if no micro-batch has left one.
            makes_rows: whether rows of what is unwritten will be made.
        Raises:
            ShareStateError: if another release has written it otherwise.
        """
        now, stored = time.monotonic(), self._token.get()
        for number in [number for number, one in held.items() if one.used < now - _HELD_SECONDS]:
            del held[number]
        known = held.get(partition)
        if stored is None:
            known = _Held([], initial(partition))
        else:
            text, unwritten_token, state_partitions = stored
            tokens = text.split(_BETWEEN_TOKENS)
            if known is None or known.tokens != tokens:
                known = self._read(partition, tokens, known)
            if known.unwritten_token != unwritten_token:
                self._read_unwritten(known, unwritten_token)
            if makes_rows and known.unwritten is not None and known.unwritten.lacks_before:
                base = self._base.get(partition, known.base)
                known.unwritten.set_before(checkpoint_of(base) if base else None)
            known.state_partitions = state_partitions
        held[partition] = known
        known.used = now
        return known

    def _read(self, partition: int, tokens: list[str], known: _Held | None) -> _Held:
        if known is not None and known.state is not None and known.tokens and known.tokens[-1] in tokens:
            # Another worker has had the log partition since.
            later = self._changes_of(tokens[tokens.index(known.tokens[-1]) + 1 :])
            changed = known.changed + sum(map(len, later))
            return replace(known, tokens=tokens, state=changed_state(known.state, later), changed=changed)
        whole, changes = self._whole.get(partition, tokens[0]), self._changes_of(tokens[1:])
        state = checkpoint_of(whole, changes) if whole else None
        if whole and state is None:
            raise ShareStateError(
                "another release has stored the state otherwise: delete the folder of --checkpoint"
            )
        changed = sum(map(len, changes))
        return replace(
            known or _Held([], None), tokens=tokens, state=state, whole=len(whole), changed=changed
        )

    def _changes_of(self, tokens: list[str]) -> list[bytes]:
        found = [self._changes.getValue((token,)) for token in tokens]
        assert None not in found
        return [bytes(one[0]) for one in found if one is not None]

    def _read_unwritten(self, known: _Held, token: str) -> None:
        earlier, known.unwritten_token = known.unwritten, token
        known.unwritten = None
        if token:
            stored = self._unwritten.get()
            assert stored is not None
            base, changes = stored
            known.unwritten = UnwrittenChanges.of(bytes(changes))
            if earlier is not None and known.base == base and not earlier.lacks_before:
                known.unwritten.set_before(earlier.before)
            known.base = base

    def update(
        self, partition: int, step: Step, state_partitions: int | None, *, are_rows_made: bool
    ) -> None:
        """Store the state after a micro-batch; before it, `get` was called.

        Args:
            partition: number of the log partition.
            step: the micro-batch.
            state_partitions: number of partitions of the topic, if the micro-batch says it.
            are_rows_made: whether the rows of what is unwritten are made.
        """
        known, name = held[partition], f"{STATE_TOPIC}-{partition}"
        token = uuid.uuid4().hex
        part: bytes | None = None
        if known.state is not None and step.after is not None and known.whole and not step.is_read_anew:
            part = change_bytes(name, known.state, step.after)
        if not are_rows_made and known.unwritten is None:
            known.base = token
            base = b"" if known.state is None else state_bytes(name, known.state)
            self._base.update(partition, token, base)
        if part is not None and known.changed + len(part) <= MOST_CHANGED * known.whole:
            self._changes.updateValue((token,), (part,))
            known.changed += len(part)
            kept = known.tokens
        else:
            # An empty value: the log is empty, and an audit left the state of another.
            whole = b"" if step.after is None else state_bytes(name, step.after)
            self._whole.update(partition, token, whole)
            self._changes.clear()
            known.whole, known.changed = len(whole), 0
            kept = []
        known.tokens, known.state = [*kept, token], step.after
        known.state_partitions = state_partitions or known.state_partitions
        self._note_unwritten(known, None if are_rows_made else step.unwritten)

    def note_rows_made(self, partition: int) -> None:
        """Note that the rows of what is unwritten are made; before it, `get` was called."""
        self._note_unwritten(held[partition], None)

    def _note_unwritten(self, known: _Held, unwritten: UnwrittenChanges | None) -> None:
        if unwritten is not None:
            known.unwritten_token = uuid.uuid4().hex
            self._unwritten.update((known.base, unwritten.to_bytes()))
        elif known.unwritten_token:
            known.unwritten_token = ""
            self._unwritten.clear()
            self._base.clear()
        known.unwritten = unwritten
        self._token.update(
            (_BETWEEN_TOKENS.join(known.tokens), known.unwritten_token, known.state_partitions)
        )
