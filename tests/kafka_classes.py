"""Kafka's own classes inside the Spark JVM: the coordinator's replay and the broker's log reader, of any release.

Each release lives in a class loader of its own beside Spark's, so releases and Spark's jars do not meet. A little Java,
compiled in the JVM by the compiler that Spark ships, stands between: a call from Python costs far more than the work.
"""

import base64
import json
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError

Key = tuple[str, str, int]
"""(group_id, topic_id, partition)"""

_SCALARS = {
    "snapshot_epoch": "snapshotEpoch",
    "state_epoch": "stateEpoch",
    "leader_epoch": "leaderEpoch",
    "start_offset": "startOffset",
    "delivery_complete_count": "deliveryCompleteCount",
    "create_timestamp": "createTimestamp",
    "write_timestamp": "writeTimestamp",
}

# Written for Janino, which knows neither generics nor lambdas. py4j tells classes apart by name only, so the class gets
# one of its own in every release; LogContext moved in 4.4.0.
_JAVA = """
import LOG_CONTEXT;
import com.fasterxml.jackson.annotation.JsonAutoDetect;
import com.fasterxml.jackson.annotation.PropertyAccessor;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.AbstractConfig;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.share.ShareCoordinatorConfig;
import org.apache.kafka.coordinator.share.ShareCoordinatorOffsetsManager;
import org.apache.kafka.coordinator.share.ShareCoordinatorRecordSerde;
import org.apache.kafka.coordinator.share.ShareCoordinatorShard;
import org.apache.kafka.coordinator.share.metrics.ShareCoordinatorMetrics;
import org.apache.kafka.timeline.SnapshotRegistry;

public class CLASS_NAME {
    private static final ShareCoordinatorMetrics METRICS = new ShareCoordinatorMetrics();
    private static final ObjectMapper FIELDS_AS_JSON = new ObjectMapper()
        .setVisibility(PropertyAccessor.ALL, JsonAutoDetect.Visibility.NONE)
        .setVisibility(PropertyAccessor.FIELD, JsonAutoDetect.Visibility.ANY);

    private final ShareCoordinatorRecordSerde serde = new ShareCoordinatorRecordSerde();
    private final ShareCoordinatorShard shard;

    public CLASS_NAME(Integer updatesPerSnapshot) {
        Map settings = Collections.singletonMap(
            ShareCoordinatorConfig.SNAPSHOT_UPDATE_RECORDS_PER_SNAPSHOT_CONFIG, updatesPerSnapshot);
        AbstractConfig config = new AbstractConfig(ShareCoordinatorConfig.CONFIG_DEF, settings, false);
        LogContext context = new LogContext();
        ShareCoordinatorShard.Builder builder =
            new ShareCoordinatorShard.Builder(new ShareCoordinatorConfig(config));
        builder.withSnapshotRegistry(new SnapshotRegistry(context));
        builder.withLogContext(context);
        builder.withTime(Time.SYSTEM);
        builder.withCoordinatorMetrics(METRICS);
        builder.withTopicPartition(new TopicPartition("__share_group_state", 0));
        shard = (ShareCoordinatorShard) builder.build();
    }

    public void replay(long offset, byte[] key, byte[] value) {
        ByteBuffer bytes = value == null ? null : ByteBuffer.wrap(value);
        shard.replay(offset, -1L, (short) -1, (CoordinatorRecord) serde.deserialize(ByteBuffer.wrap(key), bytes));
    }

    public String states() throws Exception {
        List keysThenValues = new ArrayList();
        String[] names = {"shareStateMap", "leaderEpochMap", "stateEpochMap", "snapshotUpdateCount"};
        for (int i = 0; i < names.length; i++) {
            add(keysThenValues, (Map) read(shard, names[i]));
        }
        add(keysThenValues, (Map) read(read(shard, "offsetsManager"), "offsets"));
        return FIELDS_AS_JSON.writeValueAsString(keysThenValues);
    }

    public Long redundantOffset() throws Exception {
        Optional found = ((ShareCoordinatorOffsetsManager) read(shard, "offsetsManager")).lastRedundantOffset();
        return found.isPresent() ? (Long) found.get() : null;
    }

    public String segment(String path) throws Exception {
        List found = new ArrayList();
        FileRecords file = FileRecords.open(new File(path), false);
        try {
            for (Iterator batches = file.batches().iterator(); batches.hasNext();) {
                RecordBatch batch = (RecordBatch) batches.next();
                batch.ensureValid();
                for (Iterator records = batch.iterator(); records.hasNext();) {
                    Record record = (Record) records.next();
                    record.ensureValid();
                    Object[] row = {
                        Long.valueOf(record.offset()), Long.valueOf(record.timestamp()),
                        Utils.toNullableArray(record.key()), Utils.toNullableArray(record.value())
                    };
                    found.add(row);
                }
            }
        } finally {
            file.close();
        }
        return FIELDS_AS_JSON.writeValueAsString(found);
    }

    private static void add(List keysThenValues, Map map) {
        keysThenValues.add(map.keySet());
        keysThenValues.add(map.values());
    }

    private static Object read(Object owner, String name) throws Exception {
        Field field = owner.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field.get(owner);
    }
}
"""
_LOG_CONTEXTS = ("org.apache.kafka.common.utils.internals.LogContext", "org.apache.kafka.common.utils.LogContext")
_numbers = count()


class RefusedByKafkaError(Exception):
    """Kafka threw; the message is the Java exception's class and text."""


class KafkaShard:
    """A fresh coordinator shard of one state partition, to which records are replayed as a broker loads them.

    Args:
        jvm: of a Spark session.
        jars: of one Kafka release.
        updates_per_snapshot: the broker setting that `snapshot_update_count` depends on.
    """

    def __init__(self, jvm: Any, jars: list[Path], updates_per_snapshot: int = 500) -> None:
        self._shard = _new_shard(jvm, jars, updates_per_snapshot)

    def replay(self, offset: int, key: bytes, value: bytes | None) -> None:
        """Load one record.

        Raises:
            RefusedByKafkaError: if Kafka cannot read or apply it; a broker's load of the partition would fail.
        """
        try:
            self._shard.replay(offset, key, value)
        except Py4JJavaError as error:
            raise RefusedByKafkaError(error.java_exception.toString()) from None

    def states(self) -> dict[Key, dict[str, Any]]:
        """What the coordinator holds of each share-partition.

        Returns:
            Per key: the fields of ShareGroupOffset in snake case, `state_batches` as the (first offset, last offset,
            delivery state, delivery count) that it stores, max_leader_epoch, max_state_epoch, snapshot_update_count
            and last_snapshot_offset, None where it has none.
        """
        answer = json.loads(self._shard.states())
        states, leader_epochs, state_epochs, update_counts, offsets = (
            dict(zip(map(_key, keys), values, strict=True))
            for keys, values in zip(answer[::2], answer[1::2], strict=True)
        )
        return {
            key: {name: state[field] for name, field in _SCALARS.items()}
            | {
                "state_batches": [
                    (batch["firstOffset"], batch["lastOffset"], batch["deliveryState"], batch["deliveryCount"])
                    for batch in state["stateBatches"]
                ],
                "max_leader_epoch": leader_epochs.get(key),
                "max_state_epoch": state_epochs.get(key),
                "snapshot_update_count": update_counts.get(key),
                "last_snapshot_offset": offsets.get(key),
            }
            for key, state in states.items()
        }

    def redundant_offset(self) -> int | None:
        """The offset below which the broker would delete records, None where it would delete none."""
        return self._shard.redundantOffset()


def read_segment(jvm: Any, jars: list[Path], path: Path) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """Every record of a segment, as the broker's own log reader sees it.

    Args:
        jvm: of a Spark session.
        jars: of one Kafka release.
        path: of a `.log` file.
    Returns:
        (offset, timestamp in ms, key, value) of each record, control records included.
    Raises:
        RefusedByKafkaError: if a batch is damaged, its checksum included.
    """
    try:
        answer = _new_shard(jvm, jars, 500).segment(str(path))
    except Py4JJavaError as error:
        raise RefusedByKafkaError(error.java_exception.toString()) from None
    return [(offset, timestamp, _bytes(key), _bytes(value)) for offset, timestamp, key, value in json.loads(answer)]


def _new_shard(jvm: Any, jars: list[Path], updates_per_snapshot: int) -> Any:
    values = jvm.java.util.ArrayList()
    values.add(updates_per_snapshot)
    return constructor(jvm, tuple(jars), _JAVA).newInstance(values.toArray())


@cache
def constructor(jvm: Any, jars: tuple[Path, ...], java: str) -> Any:
    """The constructor of a class, compiled against one release; CLASS_NAME and LOG_CONTEXT in it are replaced."""
    urls = jvm.java.lang.reflect.Array.newInstance(jvm.java.lang.Class.forName("java.net.URL"), len(jars))
    for place, jar in enumerate(jars):
        urls[place] = jvm.java.io.File(str(jar)).toURI().toURL()
    loader = jvm.java.net.URLClassLoader(urls, jvm.java.lang.ClassLoader.getPlatformClassLoader())
    found = [name for name in _LOG_CONTEXTS if loader.getResource(f"{name.replace('.', '/')}.class")]
    if not found:
        raise LookupError(f"no Kafka among {len(jars)} jars")
    name = f"KafkaRelease{next(_numbers)}"
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.cook(java.replace("LOG_CONTEXT", found[0]).replace("CLASS_NAME", name))
    return compiler.getClassLoader().loadClass(name).getConstructors()[0]


def _key(key: dict[str, Any]) -> Key:
    """A SharePartitionKey as Jackson writes it."""
    topic = key["topicIdPartition"]["topicId"]
    halves = topic["mostSignificantBits"], topic["leastSignificantBits"]
    uuid = b"".join(half.to_bytes(8, "big", signed=True) for half in halves)
    text = base64.urlsafe_b64encode(uuid).decode().rstrip("=")
    return key["groupId"], text, key["topicIdPartition"]["topicPartition"]["partition"]


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
