import java.io.BufferedOutputStream;
import java.io.Closeable;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.share.PersisterStateBatchCombiner;
import org.apache.kafka.coordinator.share.ShareCoordinatorRecordHelpers;
import org.apache.kafka.coordinator.share.ShareCoordinatorRecordSerde;
import org.apache.kafka.coordinator.share.ShareGroupOffset;
import org.apache.kafka.server.share.SharePartitionKey;
import org.apache.kafka.server.share.persister.PersisterStateBatch;

/**
 * Writes an export of __share_group_state: one folder of segments a state partition, as a 4.4.0 broker would have them.
 *
 * <p>Every record comes from Kafka's own helpers, serde, combiner and batch builder; only the traffic is made up. A
 * share-partition is initialized, read by its leader, then written to: consumers acknowledge, release and redeliver
 * out of order, so its window holds about --ranges runs of offsets, and the start follows one write behind.
 */
public final class Generate {
    private static final long FIRST_TIMESTAMP = 1_760_000_000_000L;
    private static final int GROUPS = 200;
    private static final int PARTITIONS_PER_TOPIC = 8;
    private static final byte AVAILABLE = 0;
    private static final byte ACKNOWLEDGED = 2;
    private static final byte ARCHIVED = 4;

    /** What the traffic looks like; sizes and rates are those of the command line. */
    private record Traffic(
        int ranges, int batchesPerUpdate, int updatesPerSnapshot, double tombstones, double minusOne) { }

    /** A run of offsets not yet finished: released (count of deliveries so far) or never persisted (count 0). */
    private record Unfinished(long first, long last, int count) { }

    public static void main(String[] args) throws IOException {
        Map<String, String> options = new HashMap<>(Map.of(
            "partitions", "8", "records", "2000000", "keys", "20000", "records-per-batch", "1", "ranges", "30",
            "batches-per-update", "4", "updates-per-snapshot", "500", "codec", "none", "seed", "1"));
        options.putAll(Map.of("segment-bytes", "104857600", "tombstones", "0", "minus-one", "0"));
        for (int i = 0; i < args.length; i += 2) {
            String name = args[i].replaceFirst("^--", "");
            if (i + 1 == args.length || !(name.equals("out") || options.containsKey(name))) {
                throw new IllegalArgumentException(args[i] + ": no such option, or it has no value");
            }
            options.put(name, args[i + 1]);
        }
        int partitions = Integer.parseInt(options.get("partitions"));
        int keys = Integer.parseInt(options.get("keys"));
        long records = Long.parseLong(options.get("records"));
        SplittableRandom random = new SplittableRandom(Long.parseLong(options.get("seed")));
        Traffic traffic = new Traffic(
            Integer.parseInt(options.get("ranges")),
            Integer.parseInt(options.get("batches-per-update")),
            Integer.parseInt(options.get("updates-per-snapshot")),
            Double.parseDouble(options.get("tombstones")),
            Double.parseDouble(options.get("minus-one")));

        StateLog[] logs = new StateLog[partitions];
        for (int p = 0; p < partitions; p++) {
            logs[p] = new StateLog(
                Path.of(options.get("out"), "__share_group_state-" + p),
                Compression.of(options.get("codec")).build(),
                Integer.parseInt(options.get("records-per-batch")),
                Long.parseLong(options.get("segment-bytes")));
        }
        SharePartition[] all = sharePartitions(keys, traffic, random);
        StateLog[] logOf = new StateLog[keys];
        for (int k = 0; k < keys; k++) {
            // ShareCoordinatorService.partitionFor
            String routed = SharePartitionKey.asCoordinatorKey(all[k].group, all[k].topic, all[k].partition);
            logOf[k] = logs[Utils.abs(routed.hashCode()) % partitions];
        }
        ShareCoordinatorRecordSerde serde = new ShareCoordinatorRecordSerde();
        long now = FIRST_TIMESTAMP;
        long ranges = 0;
        for (long i = 0; i < records; i++) {
            int k = random.nextInt(keys);
            now += random.nextInt(3);
            CoordinatorRecord record = all[k].next(now);
            logOf[k].append(now, serde.serializeKey(record), serde.serializeValue(record));
            ranges += all[k].ranges();
        }
        long bytes = 0;
        long largest = 0;
        int segments = 0;
        for (StateLog log : logs) {
            log.close();
            bytes += log.bytes;
            segments += log.segments;
            largest = Math.max(largest, log.bytes);
        }
        System.out.printf(
            "{\"records\": %d, \"bytes\": %d, \"segments\": %d, \"largest_partition_bytes\": %d, "
                + "\"ranges_a_key\": %.1f}%n",
            records, bytes, segments, largest, (double) ranges / records);
    }

    private static SharePartition[] sharePartitions(int keys, Traffic traffic, SplittableRandom random) {
        int perGroup = Math.max(1, (keys + GROUPS - 1) / GROUPS);
        Uuid[] topics = new Uuid[perGroup / PARTITIONS_PER_TOPIC + 1];
        for (int t = 0; t < topics.length; t++) {
            topics[t] = new Uuid(random.nextLong(), random.nextLong());
        }
        SharePartition[] all = new SharePartition[keys];
        for (int k = 0; k < keys; k++) {
            int within = k % perGroup;
            all[k] = new SharePartition(
                "share-group-" + k / perGroup, topics[within / PARTITIONS_PER_TOPIC], within % PARTITIONS_PER_TOPIC,
                traffic, random.split());
        }
        return all;
    }

    /** One share-partition: its state as the coordinator holds it, and the consumers that move it on. */
    private static final class SharePartition {
        final String group;
        final Uuid topic;
        final int partition;
        private final Traffic traffic;
        private final SplittableRandom random;
        private ShareGroupOffset state;
        private boolean readByLeader;
        private int stateEpoch;
        private int updates;
        private long nextStart;
        private long nextOffset;

        SharePartition(String group, Uuid topic, int partition, Traffic traffic, SplittableRandom random) {
            this.group = group;
            this.topic = topic;
            this.partition = partition;
            this.traffic = traffic;
            this.random = random;
        }

        int ranges() {
            return state == null ? 0 : state.stateBatches().size();
        }

        /** The next record the coordinator writes for this share-partition. */
        CoordinatorRecord next(long now) {
            if (state == null) {
                return initialize(now);
            }
            if (random.nextDouble() < traffic.tombstones) {
                state = null;
                return ShareCoordinatorRecordHelpers.newShareStateTombstoneRecord(group, topic, partition);
            }
            if (!readByLeader || random.nextInt(5000) == 0) {
                return readByNewLeader();
            }
            return write(now);
        }

        private CoordinatorRecord initialize(long now) {
            state = new ShareGroupOffset.Builder()
                .setSnapshotEpoch(0).setStateEpoch(++stateEpoch).setLeaderEpoch(0).setStartOffset(-1)
                .setDeliveryCompleteCount(-1).setStateBatches(List.of())
                .setCreateTimestamp(now).setWriteTimestamp(now).build();
            readByLeader = false;
            updates = 0;
            nextOffset = random.nextInt(1_000_000);
            nextStart = nextOffset;
            return ShareCoordinatorRecordHelpers.newShareSnapshotRecord(group, topic, partition, state);
        }

        private CoordinatorRecord readByNewLeader() {
            readByLeader = true;
            updates++;
            int epoch = state.leaderEpoch() + 1;
            state = with(state.startOffset(), state.deliveryCompleteCount(), epoch, state.stateBatches());
            return update(state.startOffset(), List.of());
        }

        private CoordinatorRecord write(long now) {
            List<PersisterStateBatch> acknowledged = acknowledgements();
            // Before 4.4 a writer may leave the start out; then it stays where it was.
            boolean startLeftOut = state.startOffset() != -1 && random.nextDouble() < traffic.minusOne;
            long start = startLeftOut ? state.startOffset() : nextStart;
            List<PersisterStateBatch> merged =
                new PersisterStateBatchCombiner(state.stateBatches(), acknowledged, start).combineStateBatches();
            int complete = 0;
            nextStart = start;
            for (PersisterStateBatch batch : merged) {
                if (batch.deliveryState() != AVAILABLE) {
                    complete += (int) (batch.lastOffset() - batch.firstOffset() + 1);
                    nextStart = batch.firstOffset() == nextStart ? batch.lastOffset() + 1 : nextStart;
                }
            }
            state = with(start, complete, state.leaderEpoch(), merged);
            if (updates < traffic.updatesPerSnapshot) {
                updates++;
                return update(
                    startLeftOut ? -1 : start,
                    new PersisterStateBatchCombiner(List.of(), acknowledged, start).combineStateBatches());
            }
            updates = 0;
            state = new ShareGroupOffset.Builder()
                .setSnapshotEpoch(state.snapshotEpoch() + 1).setStateEpoch(state.stateEpoch())
                .setLeaderEpoch(state.leaderEpoch()).setStartOffset(start).setDeliveryCompleteCount(complete)
                .setStateBatches(merged).setCreateTimestamp(now).setWriteTimestamp(now).build();
            return ShareCoordinatorRecordHelpers.newShareSnapshotRecord(group, topic, partition, state);
        }

        /** What consumers did since the last write: new offsets while the window has room, else old ones finished. */
        private List<PersisterStateBatch> acknowledgements() {
            List<Unfinished> open = unfinished();
            List<PersisterStateBatch> made = new ArrayList<>(traffic.batchesPerUpdate);
            int ranges = state.stateBatches().size();
            int full = 8 * traffic.ranges / 7; // neighbours join and the start moves on: so the mean is as asked
            for (int i = 0; i < traffic.batchesPerUpdate; i++) {
                if (ranges < full || open.isEmpty()) {
                    made.add(deliver());
                    ranges++;
                } else if (random.nextInt(5) < 3) {
                    Unfinished oldest = open.remove(0);
                    made.add(finish(oldest.first, oldest.last, oldest.count));
                    ranges--;
                } else {
                    made.add(redeliver(open.remove(random.nextInt(open.size()))));
                }
            }
            return made;
        }

        private List<Unfinished> unfinished() {
            List<Unfinished> open = new ArrayList<>();
            long expected = nextStart;
            for (PersisterStateBatch batch : state.stateBatches()) {
                if (batch.firstOffset() > expected) {
                    open.add(new Unfinished(expected, batch.firstOffset() - 1, 0));
                }
                if (batch.deliveryState() == AVAILABLE && batch.lastOffset() >= expected) {
                    open.add(new Unfinished(batch.firstOffset(), batch.lastOffset(), batch.deliveryCount()));
                }
                expected = Math.max(expected, batch.lastOffset() + 1);
            }
            return open;
        }

        private PersisterStateBatch deliver() {
            if (random.nextInt(8) == 0) {
                nextOffset += 1 + random.nextInt(20); // still with a slow consumer: nothing persisted
            }
            long first = nextOffset;
            nextOffset += 1 + random.nextInt(50);
            int outcome = random.nextInt(20);
            byte reached = outcome < 12 ? ACKNOWLEDGED : outcome < 18 ? AVAILABLE : ARCHIVED;
            return new PersisterStateBatch(first, nextOffset - 1, reached, (short) 1);
        }

        private PersisterStateBatch finish(long first, long last, int count) {
            return new PersisterStateBatch(
                first, last, random.nextInt(10) == 0 ? ARCHIVED : ACKNOWLEDGED, (short) (count + 1));
        }

        private PersisterStateBatch redeliver(Unfinished run) {
            long first = run.first + random.nextLong(run.last - run.first + 1);
            long last = first + random.nextLong(run.last - first + 1);
            if (run.count < 2 && random.nextInt(4) == 0) {
                return new PersisterStateBatch(first, last, AVAILABLE, (short) (run.count + 1));
            }
            return finish(first, last, run.count);
        }

        private ShareGroupOffset with(long start, int complete, int leaderEpoch, List<PersisterStateBatch> batches) {
            return new ShareGroupOffset.Builder()
                .setSnapshotEpoch(state.snapshotEpoch()).setStateEpoch(state.stateEpoch()).setLeaderEpoch(leaderEpoch)
                .setStartOffset(start).setDeliveryCompleteCount(complete).setStateBatches(batches)
                .setCreateTimestamp(state.createTimestamp()).setWriteTimestamp(state.writeTimestamp()).build();
        }

        private CoordinatorRecord update(long start, List<PersisterStateBatch> batches) {
            return ShareCoordinatorRecordHelpers.newShareUpdateRecord(
                group, topic, partition,
                new ShareGroupOffset.Builder()
                    .setSnapshotEpoch(state.snapshotEpoch()).setLeaderEpoch(state.leaderEpoch()).setStartOffset(start)
                    .setDeliveryCompleteCount(state.deliveryCompleteCount()).setStateBatches(batches).build());
        }
    }

    /** The segments of one state partition; records gather into batches, batches into segments. */
    private static final class StateLog implements Closeable {
        private final Path folder;
        private final Compression compression;
        private final int recordsPerBatch;
        private final long segmentBytes;
        private ByteBuffer buffer = ByteBuffer.allocate(16 * 1024);
        private MemoryRecordsBuilder batch;
        private OutputStream segment;
        private long segmentSize;
        private long nextOffset;
        private int pending;
        long bytes;
        int segments;

        StateLog(Path folder, Compression compression, int recordsPerBatch, long segmentBytes) throws IOException {
            this.folder = Files.createDirectories(folder);
            this.compression = compression;
            this.recordsPerBatch = recordsPerBatch;
            this.segmentBytes = segmentBytes;
        }

        void append(long timestamp, byte[] key, byte[] value) throws IOException {
            if (pending == 0) {
                buffer.clear();
                batch = MemoryRecords.builder(
                    buffer, RecordBatch.CURRENT_MAGIC_VALUE, compression, TimestampType.CREATE_TIME, nextOffset,
                    RecordBatch.NO_TIMESTAMP, RecordBatch.NO_PRODUCER_ID, RecordBatch.NO_PRODUCER_EPOCH,
                    RecordBatch.NO_SEQUENCE, false, 0);
            }
            batch.append(timestamp, key, value);
            pending++;
            if (pending == recordsPerBatch) {
                flush();
            }
        }

        private void flush() throws IOException {
            ByteBuffer built = batch.build().buffer();
            int size = built.remaining();
            if (segment == null || segmentSize + size > segmentBytes) {
                if (segment != null) {
                    segment.close();
                }
                Path file = folder.resolve(String.format("%020d.log", nextOffset));
                segment = new BufferedOutputStream(Files.newOutputStream(file), 1 << 20);
                segmentSize = 0;
                segments++;
            }
            segment.write(built.array(), built.arrayOffset() + built.position(), size);
            segmentSize += size;
            bytes += size;
            nextOffset += pending;
            pending = 0;
            if (size > buffer.capacity()) {
                buffer = ByteBuffer.allocate(2 * size);
            }
        }

        @Override
        public void close() throws IOException {
            if (pending > 0) {
                flush();
            }
            if (segment != null) {
                segment.close();
            }
        }
    }
}
