"""Kafka's own share coordinator asked as a broker asks it: requests in, records and answers out, in the Spark JVM.

`tests/kafka_classes.py` explains the class loaders and the little Java; this one drives the write side.
"""

import base64
import json
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from share_state.simulator.state_values import StateKey
from share_state.simulator.types import StateWrite
from tests.simulator.logs.conversations import Request

_JAVA = """
import LOG_CONTEXT;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.LinkedHashMap;
import java.util.Optional;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.AbstractConfig;
import org.apache.kafka.common.message.*;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataImage;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.common.runtime.CoordinatorResult;
import org.apache.kafka.coordinator.share.ShareCoordinatorConfig;
import org.apache.kafka.coordinator.share.ShareCoordinatorRecordSerde;
import org.apache.kafka.coordinator.share.ShareCoordinatorShard;
import org.apache.kafka.coordinator.share.metrics.ShareCoordinatorMetrics;
import org.apache.kafka.timeline.SnapshotRegistry;

public class CLASS_NAME implements InvocationHandler {
    private static final ShareCoordinatorMetrics METRICS = new ShareCoordinatorMetrics();
    private static final ObjectMapper JSON = new ObjectMapper();

    private final ShareCoordinatorRecordSerde serde = new ShareCoordinatorRecordSerde();
    private final ShareCoordinatorShard shard;
    private long now;
    private long offset = 0L;

    public CLASS_NAME(Integer updatesPerSnapshot) {
        Map settings = Collections.singletonMap(
            ShareCoordinatorConfig.SNAPSHOT_UPDATE_RECORDS_PER_SNAPSHOT_CONFIG, updatesPerSnapshot);
        AbstractConfig config = new AbstractConfig(ShareCoordinatorConfig.CONFIG_DEF, settings, false);
        LogContext context = new LogContext();
        ShareCoordinatorShard.Builder builder = new ShareCoordinatorShard.Builder(new ShareCoordinatorConfig(config));
        builder.withSnapshotRegistry(new SnapshotRegistry(context));
        builder.withLogContext(context);
        builder.withTime((Time) standIn(Time.class));
        builder.withCoordinatorMetrics(METRICS);
        builder.withTopicPartition(new TopicPartition("__share_group_state", 0));
        shard = (ShareCoordinatorShard) builder.build();
        shard.onLoaded((CoordinatorMetadataImage) standIn(CoordinatorMetadataImage.class));
    }

    private Object standIn(Class type) {
        return Proxy.newProxyInstance(type.getClassLoader(), new Class[] {type}, this);
    }

    /** The clock, and a cluster in which every topic has partitions enough. */
    public Object invoke(Object proxy, Method method, Object[] arguments) {
        String name = method.getName();
        if (name.equals("milliseconds")) return Long.valueOf(now);
        if (name.equals("hiResClockMs")) return Long.valueOf(now);
        if (name.equals("nanoseconds")) return Long.valueOf(now * 1000000L);
        if (name.equals("topicMetadata")) {
            return Optional.of(standIn(CoordinatorMetadataImage.TopicMetadata.class));
        }
        if (name.equals("partitionCount")) return Integer.valueOf(Integer.MAX_VALUE);
        if (name.equals("hashCode")) return Integer.valueOf(1);
        if (name.equals("equals")) return Boolean.valueOf(proxy == arguments[0]);
        if (name.equals("isEmpty")) return Boolean.FALSE;
        throw new IllegalStateException(method.toString());
    }

    public String ask(String requests) throws Exception {
        List answers = new ArrayList();
        for (Iterator all = JSON.readTree(requests).elements(); all.hasNext();) {
            JsonNode request = (JsonNode) all.next();
            now = request.get("now").asLong();
            answers.add(answer(request.get("method").asText(), request.get("data")));
        }
        return JSON.writeValueAsString(answers);
    }

    private Object answer(String method, JsonNode data) throws Exception {
        CoordinatorResult result;
        Object response = null;
        if (method.equals("initialize")) {
            result = shard.initializeState(InitializeShareGroupStateRequestDataJsonConverter.read(data, (short) 0));
            response = InitializeShareGroupStateResponseDataJsonConverter.write(
                (InitializeShareGroupStateResponseData) result.response(), (short) 0);
        } else if (method.equals("write")) {
            result = shard.writeState(WriteShareGroupStateRequestDataJsonConverter.read(data, (short) 1));
            response = WriteShareGroupStateResponseDataJsonConverter.write(
                (WriteShareGroupStateResponseData) result.response(), (short) 1);
        } else if (method.equals("read")) {
            result = shard.readStateAndMaybeUpdateLeaderEpoch(
                ReadShareGroupStateRequestDataJsonConverter.read(data, (short) 0));
            response = ReadShareGroupStateResponseDataJsonConverter.write(
                (ReadShareGroupStateResponseData) result.response(), (short) 0);
        } else if (method.equals("delete")) {
            result = shard.deleteState(DeleteShareGroupStateRequestDataJsonConverter.read(data, (short) 0));
            response = DeleteShareGroupStateResponseDataJsonConverter.write(
                (DeleteShareGroupStateResponseData) result.response(), (short) 0);
        } else {
            result = shard.snapshotColdPartitions();
        }
        List records = new ArrayList();
        for (Iterator made = result.records().iterator(); made.hasNext();) {
            CoordinatorRecord record = (CoordinatorRecord) made.next();
            Object[] bytes = {serde.serializeKey(record), serde.serializeValue(record)};
            records.add(bytes);
            shard.replay(offset, -1L, (short) -1, record);
            offset = offset + 1L;
        }
        Map told = new LinkedHashMap();
        told.put("response", response);
        told.put("records", records);
        return told;
    }
}
"""
_LOG_CONTEXTS = ("org.apache.kafka.common.utils.internals.LogContext", "org.apache.kafka.common.utils.LogContext")
_numbers = count()


def answers(
    jvm: Any, jars: list[Path], asked: list[tuple[int, Request]], updates_per_snapshot: int
) -> list[tuple[dict[str, Any] | None, list[tuple[bytes, bytes | None]]]]:
    """What a fresh coordinator of Kafka does with requests.

    Args:
        jvm: of a Spark session.
        jars: of one Kafka release.
        asked: each request and the time in ms.
        updates_per_snapshot: the broker's setting.
    Returns:
        For each request the partition's part of the response (None where the call has none), and the records it made
        as key and value bytes.
    """
    values = jvm.java.util.ArrayList()
    values.add(updates_per_snapshot)
    coordinator = _constructor(jvm, tuple(jars)).newInstance(values.toArray())
    told = json.loads(coordinator.ask(json.dumps([_json(now, request) for now, request in asked])))
    return [
        (
            one["response"] and one["response"]["results"][0]["partitions"][0],
            [(base64.b64decode(key), value and base64.b64decode(value)) for key, value in one["records"]],
        )
        for one in told
    ]


def _json(now_ms: int, request: Request) -> dict[str, Any]:
    method, arguments = request.method, request.arguments
    data: Any = arguments[0] if arguments else None
    if isinstance(data, StateKey):
        one = {"partition": data.partition} | _fields(method, arguments[1:])
        data = {"groupId": data.group_id, "topics": [{"topicId": data.topic_id, "partitions": [one]}]}
    return {"method": method, "now": now_ms, "data": data}


def _fields(method: str, arguments: tuple[Any, ...]) -> dict[str, Any]:
    if method == "initialize":
        return dict(zip(("stateEpoch", "startOffset"), arguments, strict=True))
    if method == "read":
        return {"leaderEpoch": arguments[0]}
    if method == "delete":
        return {}
    write: StateWrite = arguments[0]
    names = ("firstOffset", "lastOffset", "deliveryState", "deliveryCount")
    return {
        "stateEpoch": write.state_epoch,
        "leaderEpoch": write.leader_epoch,
        "startOffset": write.start_offset,
        "deliveryCompleteCount": write.delivery_complete_count,
        "stateBatches": [dict(zip(names, map(int, batch), strict=True)) for batch in write.batches],
    }


@cache
def _constructor(jvm: Any, jars: tuple[Path, ...]) -> Any:
    """The constructor of the Java above, compiled against one release."""
    urls = jvm.java.lang.reflect.Array.newInstance(jvm.java.lang.Class.forName("java.net.URL"), len(jars))
    for place, jar in enumerate(jars):
        urls[place] = jvm.java.io.File(str(jar)).toURI().toURL()
    loader = jvm.java.net.URLClassLoader(urls, jvm.java.lang.ClassLoader.getPlatformClassLoader())
    (found,) = [name for name in _LOG_CONTEXTS if loader.getResource(f"{name.replace('.', '/')}.class")]
    name = f"KafkaCoordinator{next(_numbers)}"
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.cook(_JAVA.replace("LOG_CONTEXT", found).replace("CLASS_NAME", name))
    return compiler.getClassLoader().loadClass(name).getConstructors()[0]
