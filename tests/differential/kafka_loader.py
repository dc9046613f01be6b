"""Kafka's own log and coordinator loader inside the Spark JVM; see tests/kafka_classes.py for how."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError

from tests.kafka_classes import RefusedByKafkaError, constructor

# Written for Janino, which knows neither generics nor lambdas.
_JAVA = """
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Function;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.requests.TransactionResult;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.coordinator.common.runtime.CoordinatorLoaderImpl;
import org.apache.kafka.coordinator.common.runtime.CoordinatorPlayback;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.common.runtime.Deserializer;
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordSerde;
import org.apache.kafka.coordinator.share.ShareCoordinatorRecordSerde;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

public class CLASS_NAME {
    public CLASS_NAME() {}

    public String load(String folder, boolean isOfGroups) throws Exception {
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        BrokerTopicStats stats = new BrokerTopicStats(false);
        final UnifiedLog log = UnifiedLog.create(new File(folder), new LogConfig(new HashMap()), 0L, 0L, scheduler,
            stats, Time.SYSTEM, 900000, new ProducerStateManagerConfig(86400000, false), 600000,
            new LogDirFailureChannel(1), false, Optional.empty());
        log.updateHighWatermark(log.logEndOffset());
        Function logs = new Function() {
            public Object apply(Object partition) { return Optional.of(log); }
        };
        Function ends = new Function() {
            public Object apply(Object partition) { return Optional.of(Long.valueOf(log.logEndOffset())); }
        };
        Deserializer serde = isOfGroups
            ? (Deserializer) new GroupCoordinatorRecordSerde() : (Deserializer) new ShareCoordinatorRecordSerde();
        final List calls = new ArrayList();
        CoordinatorPlayback playback = new CoordinatorPlayback() {
            public void replay(long offset, long producerId, short epoch, Object record) {
                Object[] call = {
                    Long.valueOf(offset), Long.valueOf(producerId),
                    Integer.valueOf(((CoordinatorRecord) record).key().apiKey())
                };
                calls.add(call);
            }
            public void replayEndTransactionMarker(long producerId, short epoch, TransactionResult result) {
                Object[] call = {null, Long.valueOf(producerId), Integer.valueOf(result.id ? 1 : 0)};
                calls.add(call);
            }
            public void updateLastWrittenOffset(long offset) {}
            public void updateLastCommittedOffset(long offset) {}
        };
        CoordinatorLoaderImpl loader = new CoordinatorLoaderImpl(Time.SYSTEM, logs, ends, serde, 1 << 20, 1000L);
        try {
            loader.load(log.topicPartition(), playback).get();
        } finally {
            loader.close();
            log.close();
            scheduler.shutdown();
            stats.close();
        }
        Object[] answer = {calls, Long.valueOf(log.lastStableOffset()), Long.valueOf(log.logEndOffset())};
        return new ObjectMapper().writeValueAsString(answer);
    }
}
"""


@dataclass(frozen=True)
class Loaded:
    """What Kafka's loader told a coordinator of a log, and what its log knows.

    Attributes:
        offsets: of the records outside of transactions and of committed ones, as a coordinator keeps them that holds
            back the records of a producer id until a marker.
        all_offsets: of all records that the loader replayed.
        types: offset -> record type.
        last_stable_offset, end_offset: of the log.
    """

    offsets: list[int]
    all_offsets: list[int]
    types: dict[int, int]
    last_stable_offset: int
    end_offset: int


class KafkaLoader:
    """Kafka's `UnifiedLog` and `CoordinatorLoaderImpl` of one release.

    Args:
        jvm: of a Spark session.
        jars: of that release, kafka-storage and both coordinators among them.
    """

    def __init__(self, jvm: Any, jars: list[Path]) -> None:
        self._java = constructor(jvm, tuple(jars), _JAVA).newInstance(jvm.java.util.ArrayList().toArray())

    def load(self, folder: Path, *, is_of_groups: bool = False) -> Loaded:
        """Open the log of a folder as after a crash, and load it into a coordinator.

        Raises:
            RefusedByKafkaError: if Kafka cannot load it.
        """
        try:
            calls, stable, end = json.loads(self._java.load(str(folder), is_of_groups))
        except Py4JJavaError as error:
            raise RefusedByKafkaError(error.java_exception.toString()) from None
        counted, pending = list[int](), dict[int, list[int]]()
        for offset, producer, kind in calls:
            if offset is None:
                ended = pending.pop(producer, [])
                counted += ended if kind else []
            elif producer < 0:
                counted.append(offset)
            else:
                pending.setdefault(producer, []).append(offset)
        records = {offset: kind for offset, _, kind in calls if offset is not None}
        return Loaded(sorted(counted), sorted(records), records, stable, end)
