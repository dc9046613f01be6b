package kafka.server.share;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.OptionalLong;
import java.util.concurrent.CompletableFuture;
import kafka.server.ReplicaManager;
import org.apache.kafka.clients.consumer.internals.ShareAcquireMode;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.message.ShareFetchResponseData.AcquiredRecords;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.SimpleRecord;
import org.apache.kafka.coordinator.group.GroupConfigManager;
import org.apache.kafka.coordinator.group.GroupCoordinatorConfig;
import org.apache.kafka.coordinator.group.modern.share.ShareGroupConfig;
import org.apache.kafka.server.share.acknowledge.ShareAcknowledgementBatch;
import org.apache.kafka.server.share.fetch.DelayedShareFetchKey;
import org.apache.kafka.server.share.fetch.InFlightBatch;
import org.apache.kafka.server.share.fetch.InFlightState;
import org.apache.kafka.server.share.metrics.SharePartitionMetrics;
import org.apache.kafka.server.share.persister.PartitionStateBatchData;
import org.apache.kafka.server.share.persister.PersisterStateBatch;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.server.storage.log.FetchPartitionData;

/**
 * Kafka's SharePartition with nothing of a broker around it. Each call is one line of JSON and answers with one: a call
 * from Python costs far more than the work, and the classes driven here are visible inside their package only.
 */
public final class DrivenSharePartition {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final String GROUP = "G1";
    private static final TopicIdPartition PARTITION =
        new TopicIdPartition(new Uuid(1, 2), new TopicPartition("T", 0));
    private static final SharePartitionMetrics METRICS = new SharePartitionMetrics(GROUP, "T", 0);
    private static final GroupConfigManager GROUPS = new GroupConfigManager(
        Map.of(), GroupCoordinatorConfig.fromProps(Map.of()), ShareGroupConfig.fromProps(Map.of()));

    private final DrivenTimer timer = new DrivenTimer();
    private final HeldPersister persister;
    private final SharePartition partition;

    /** Waiting fetches are the broker's: made without its constructor, which wants a whole broker. */
    private static final class NoWaitingFetches extends ReplicaManager {
        private NoWaitingFetches() {
            super(null, null, null, null, null, null, null, null, null, null, null,
                null, null, null, null, null, null, null, null, null, null);
        }

        static ReplicaManager made() throws ReflectiveOperationException {
            Field field = sun.misc.Unsafe.class.getDeclaredField("theUnsafe");
            field.setAccessible(true);
            return (ReplicaManager) ((sun.misc.Unsafe) field.get(null)).allocateInstance(NoWaitingFetches.class);
        }

        @Override
        public void completeDelayedShareFetchRequest(DelayedShareFetchKey key) {
        }
    }

    /** A share-partition that has loaded what was recorded. */
    public DrivenSharePartition(String loaded) throws Exception {
        JsonNode told = JSON.readTree(loaded);
        List<PersisterStateBatch> batches = new ArrayList<>();
        for (JsonNode batch : told.get("batches")) {
            batches.add(new PersisterStateBatch(batch.get(0).asLong(), batch.get(1).asLong(),
                (byte) batch.get(2).asInt(), (short) batch.get(3).asInt()));
        }
        persister = new HeldPersister(
            PARTITION, told.get("state_epoch").asInt(), told.get("start_offset").asLong(), batches);
        partition = new SharePartition(GROUP, PARTITION, told.get("leader_epoch").asInt(),
            told.get("max_record_locks").asInt(), told.get("delivery_count_limit").asInt(),
            told.get("record_lock_duration_ms").asInt(), timer, timer, persister, NoWaitingFetches.made(), GROUPS,
            SharePartition.SharePartitionState.EMPTY, null, METRICS);
        partition.maybeInitialize();
    }

    public String acquire(String fetch) throws Exception {
        JsonNode told = JSON.readTree(fetch);
        List<AcquiredRecords> acquired;
        try {
            acquired = partition.acquire(told.get("member").asText(),
                ShareAcquireMode.values()[told.get("mode").asInt()], told.get("batch_size").asInt(),
                told.get("max_records").asInt(), told.get("fetch_offset").asLong(), data(told.get("log_batches")),
                FetchIsolation.HIGH_WATERMARK).acquiredRecords();
        } catch (IllegalArgumentException error) {
            // A full window, and a log that goes on only behind it: the range to acquire is inverted, the fetch fails.
            if (!"inconsistent range".equals(error.getMessage())) {
                throw error;
            }
            acquired = List.of();
        }
        ObjectNode answer = JSON.createObjectNode();
        ArrayNode ranges = answer.putArray("acquired");
        acquired.forEach(range ->
            ranges.addArray().add(range.firstOffset()).add(range.lastOffset()).add(range.deliveryCount()));
        return answered(answer);
    }

    /** Answers with the error as far as it is known before the write is. */
    public String acknowledge(String member, String request) throws Exception {
        List<ShareAcknowledgementBatch> batches = new ArrayList<>();
        for (JsonNode batch : JSON.readTree(request)) {
            List<Byte> types = new ArrayList<>();
            batch.get(2).forEach(type -> types.add((byte) type.asInt()));
            batches.add(new ShareAcknowledgementBatch(batch.get(0).asLong(), batch.get(1).asLong(), types));
        }
        try {
            return answered(error(partition.acknowledge(member, batches)));
        } catch (NullPointerException nothingInFlight) {
            return answered(JSON.createObjectNode().put("error", Errors.UNKNOWN_SERVER_ERROR.code()));
        }
    }

    public String release(String member) throws Exception {
        return answered(error(partition.releaseAcquiredRecords(member)));
    }

    public String moveLogStart(long offset) throws Exception {
        partition.updateCacheAndOffsets(offset);
        return answered(JSON.createObjectNode());
    }

    /** Runs the locks that are due first before a time; answers with null where there are none. */
    public String expireNext(long untilMs) throws Exception {
        if (timer.runNext(untilMs)) {
            return answered(JSON.createObjectNode().put("now_ms", timer.milliseconds()));
        }
        timer.moveTo(untilMs);
        return null;
    }

    public String answer(int errorCode) throws Exception {
        persister.answer(Errors.forCode((short) errorCode));
        return answered(JSON.createObjectNode());
    }

    /** What there is: the state after the load, or at any time. */
    public String look() throws Exception {
        return answered(JSON.createObjectNode());
    }

    private static ObjectNode error(CompletableFuture<Void> future) {
        ObjectNode answer = JSON.createObjectNode().put("error", Errors.NONE.code());
        if (future.isCompletedExceptionally()) {
            future.whenComplete((nothing, thrown) -> answer.put("error", Errors.forException(thrown).code()));
        }
        return answer;
    }

    private static FetchPartitionData data(JsonNode logBatches) {
        ByteBuffer bytes = ByteBuffer.allocate(1 << 16);
        for (JsonNode batch : logBatches) {
            SimpleRecord[] records = new SimpleRecord[batch.get(1).asInt() - batch.get(0).asInt() + 1];
            for (int i = 0; i < records.length; i++) {
                records[i] = new SimpleRecord(new byte[] {1});
            }
            bytes.put(MemoryRecords.withRecords(batch.get(0).asLong(), Compression.NONE, records).buffer());
        }
        bytes.flip();
        return new FetchPartitionData(Errors.NONE, Long.MAX_VALUE, 0, MemoryRecords.readableRecords(bytes),
            Optional.empty(), OptionalLong.empty(), Optional.empty(), OptionalInt.empty(), false);
    }

    private String answered(ObjectNode answer) throws Exception {
        answer.put("status", partition.partitionState().name().toLowerCase());
        answer.put("start_offset", partition.startOffset());
        answer.put("end_offset", partition.endOffset());
        answer.put("delivery_complete_count", partition.deliveryCompleteCount());
        ArrayNode writes = answer.putArray("writes");
        for (PartitionStateBatchData write : persister.written()) {
            ArrayNode row = writes.addArray().add(write.leaderEpoch()).add(write.stateEpoch())
                .add(write.startOffset()).add(write.deliveryCompleteCount());
            ArrayNode batches = row.addArray();
            write.stateBatches().forEach(batch -> batches.addArray().add(batch.firstOffset()).add(batch.lastOffset())
                .add(batch.deliveryState()).add(batch.deliveryCount()));
        }
        ArrayNode batches = answer.putArray("batches");
        for (InFlightBatch batch : partition.cachedState().values()) {
            ArrayNode row = batches.addArray().add(batch.firstOffset()).add(batch.lastOffset());
            row.add(batch.offsetState() != null);
            ArrayNode states = row.addArray();
            if (batch.offsetState() == null) {
                Field whole = InFlightBatch.class.getDeclaredField("batchState");
                whole.setAccessible(true);
                add(states, batch.firstOffset(), batch.lastOffset(), (InFlightState) whole.get(batch));
            } else {
                batch.offsetState().forEach((offset, state) -> add(states, offset, offset, state));
            }
        }
        // Last, for it may change a flag: whether the next fetch is to be searched for.
        answer.put("can_acquire", partition.canAcquireRecords());
        answer.put("next_fetch_offset", partition.nextFetchOffset());
        return JSON.writeValueAsString(answer);
    }

    private static void add(ArrayNode states, long first, long last, InFlightState state) {
        ArrayNode row = states.addArray().add(first).add(last).add(state.state().id()).add(state.deliveryCount());
        row.add(state.memberId()).add(state.hasOngoingStateTransition());
        if (state.acquisitionLockTimeoutTask() == null || state.hasOngoingStateTransition()) {
            row.addNull();
        } else {
            row.add(state.acquisitionLockTimeoutTask().expirationMs());
        }
    }
}
