"""The state of a log partition in Spark's state store: the whole, and what micro-batches have changed since.

To store the whole each time would cost a micro-batch of few records as much as one of many.
"""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

from share_state.fold.checkpoint import FoldCheckpoint
from share_state.pipeline.stream_fold import Step
from share_state.pipeline.stream_state import change_bytes, changed_state, checkpoint_of, state_bytes
from share_state.sources.log_partition import STATE_TOPIC

MOST_CHANGED = 0.5
"""Bytes of changes that are stored for each byte of the whole, before the whole is stored again."""
_BETWEEN_TOKENS = ","
_HELD_SECONDS = 300.0
"""How long a worker holds a state that it was not asked for: another worker may have the log partition now."""


@dataclass(slots=True)
class _Held:
    """The latest state of a log partition.

    Attributes:
        tokens: of the whole in the store and of each change since, as far as known; empty for none.
        state: the state.
        whole, changed: bytes of the whole and of the changes in the store.
        used: `time.monotonic` when it was used last.
    """

    tokens: list[str]
    state: FoldCheckpoint | None
    whole: int
    changed: int
    used: float


held = dict[int, _Held]()
"""Log partition -> its state: Spark gives a worker process many micro-batches."""


class StoredLog:
    """Reads and writes the state of the log partition whose records Spark has given."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._whole = handle.getValueState("log", "state binary")
        self._changes = handle.getListState("changes", "state binary")
        self._token = handle.getValueState("token", "token string")

    def get(
        self, partition: int, initial: Callable[[int], FoldCheckpoint | None] = lambda _: None
    ) -> FoldCheckpoint | None:
        """The state after the last micro-batch; None for none.

        Args:
            partition: number of the log partition.
            initial: gives the state if no micro-batch has left one.
        """
        now, stored = time.monotonic(), self._token.get()
        tokens = [] if stored is None else stored[0].split(_BETWEEN_TOKENS)
        for number in [number for number, one in held.items() if one.used < now - _HELD_SECONDS]:
            del held[number]
        known = held.get(partition)
        if known is None or not tokens or known.tokens != tokens:
            held[partition] = known = self._read(tokens, known, lambda: initial(partition))
        known.used = now
        return known.state

    def _read(
        self, tokens: list[str], known: _Held | None, initial: Callable[[], FoldCheckpoint | None]
    ) -> _Held:
        stored = self._whole.get()
        if stored is None:
            return _Held([], initial(), 0, 0, 0.0)
        changes = [bytes(one[0]) for one in self._changes.get()]
        changed = sum(map(len, changes))
        if known is not None and known.state is not None and known.tokens and known.tokens[-1] in tokens:
            # Another worker has had the log partition since.
            later = len(tokens) - 1 - tokens.index(known.tokens[-1])
            state = changed_state(known.state, changes[len(changes) - later :])
            return _Held(tokens, state, known.whole, changed, 0.0)
        whole = bytes(stored[0])
        state = checkpoint_of(whole, changes) if whole else None
        return _Held(tokens, state, len(whole), changed, 0.0)

    def update(self, partition: int, step: Step) -> None:
        """Store the state after a micro-batch; before it, `get` was called."""
        known, name = held[partition], f"{STATE_TOPIC}-{partition}"
        part: bytes | None = None
        if known.state is not None and step.after is not None and known.whole and not step.is_read_anew:
            part = change_bytes(name, known.state, step.after)
        if part is not None and known.changed + len(part) <= MOST_CHANGED * known.whole:
            self._changes.appendValue((part,))
            known.changed += len(part)
            kept = known.tokens
        else:
            # An empty value: the log is empty, and an audit left the state of another.
            whole = b"" if step.after is None else state_bytes(name, step.after)
            self._whole.update((whole,))
            self._changes.clear()
            known.whole, known.changed = len(whole), 0
            kept = []
        known.tokens, known.state = [*kept, uuid.uuid4().hex], step.after
        self._token.update((_BETWEEN_TOKENS.join(known.tokens),))
