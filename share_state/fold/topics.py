"""What is known of the topics that share groups read: names and end offsets, which the state topic does not hold."""

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

_NAMES = pa.schema([("topic_id", pa.string()), ("topic", pa.string())])
_ENDS = pa.schema([("topic_id", pa.string()), ("partition", pa.int32()), ("end_offset", pa.int64())])


@dataclass(frozen=True, slots=True)
class Topics:
    """Names and end offsets by topic id.

    Attributes:
        names: columns topic_id and topic.
        ends: columns topic_id, partition (int32) and end_offset (the next offset to be written, int64).
    """

    names: pa.Table = field(default_factory=_NAMES.empty_table)
    ends: pa.Table = field(default_factory=_ENDS.empty_table)

    def name_of(self, topic_ids: pa.Array) -> pa.Array:
        """The name of each topic id, null where it is not known."""
        if not len(self.names):
            return pa.nulls(len(topic_ids), pa.string())
        return self.names["topic"].combine_chunks().take(_place(topic_ids, self.names["topic_id"].combine_chunks()))

    def end_of(self, topic_ids: pa.Array, partitions: pa.Array) -> pa.Array:
        """The end offset of each topic-partition, null where it is not known."""
        if not len(self.ends):
            return pa.nulls(len(topic_ids), pa.int64())
        known = _joined(self.ends["topic_id"].combine_chunks(), self.ends["partition"].combine_chunks())
        return self.ends["end_offset"].combine_chunks().take(_place(_joined(topic_ids, partitions), known))


def _joined(topic_ids: pa.Array, partitions: pa.Array) -> pa.Array:
    return pc.call_function("binary_join_element_wise", [topic_ids, partitions.cast(pa.string()), pa.scalar(":")])


def _place(values: pa.Array, among: pa.Array) -> pa.Array:
    return pc.call_function("index_in", [values], pc.SetLookupOptions(among))
