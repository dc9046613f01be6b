import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.SimpleRecord;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.share.PersisterStateBatchCombiner;
import org.apache.kafka.coordinator.share.ShareCoordinatorRecordHelpers;
import org.apache.kafka.coordinator.share.ShareCoordinatorRecordSerde;
import org.apache.kafka.coordinator.share.ShareGroupOffset;
import org.apache.kafka.server.share.SharePartitionKey;
import org.apache.kafka.server.share.persister.PersisterStateBatch;

/**
 * Writes an export of __share_group_state: one folder of segments per state partition, as a 4.4.0 broker would.
 *
 * <p>Every record comes from Kafka's own helpers, serde, combiner and batch builder; only the traffic is made up. A
 * share-partition is initialized, read by its leader, then written to: consumers acknowledge, release and redeliver
 * out of order, so that its window holds about `ranges` ranges of offsets, and the start follows one write behind.
 */
public final class Generate {
    private static final long FIRST_TIMESTAMP = 1_760_000_000_000L;
    private static final int GROUPS = 200;
    private static final int PARTITIONS_PER_TOPIC = 8;
    private static final int UPDATES_PER_SNAPSHOT = 500; // share.coordinator.snapshot.update.records.per.snapshot
    private static final int SEGMENT_BYTES = 104_857_600;
    private static final byte AVAILABLE = 0;
    private static final byte ACKNOWLEDGED = 2;
    private static final byte ARCHIVED = 4;

    private final Map<String, String> options;

    private Generate(Map<String, String> options) {
        this.options = options;
    }

    /** Arguments: name=value for each field of bench.inputs.Shape, and out=FOLDER. */
    public static void main(String[] args) throws IOException {
        new Generate(Stream.of(args).map(arg -> arg.split("=", 2)).collect(Collectors.toMap(a -> a[0], a -> a[1]))).run();
    }

    private int number(String option) {
        return Integer.parseInt(options.get(option));
    }

    private void run() throws IOException {
        StateLog[] logs = new StateLog[number("partitions")];
        for (int p = 0; p < logs.length; p++) {
            logs[p] = new StateLog(Files.createDirectories(Path.of(options.get("out"), "__share_group_state-" + p)));
        }
        SplittableRandom random = new SplittableRandom(1);
        SharePartition[] all = sharePartitions(random);
        ShareCoordinatorRecordSerde serde = new ShareCoordinatorRecordSerde();
        long now = FIRST_TIMESTAMP;
        long ranges = 0;
        int records = number("records");
        for (int i = 0; i < records; i++) {
            SharePartition one = all[random.nextInt(all.length)];
            now += random.nextInt(3);
            CoordinatorRecord record = one.next(now);
            logs[one.hash % logs.length].append(now, serde.serializeKey(record), serde.serializeValue(record));
            ranges += one.state.stateBatches().size();
        }
        for (StateLog log : logs) {
            log.flush();
        }
        System.out.println((double) ranges / records);
    }

    private SharePartition[] sharePartitions(SplittableRandom random) {
        SharePartition[] all = new SharePartition[number("keys")];
        int perGroup = Math.max(1, (all.length + GROUPS - 1) / GROUPS);
        Uuid[] topics = new Uuid[perGroup / PARTITIONS_PER_TOPIC + 1];
        for (int t = 0; t < topics.length; t++) {
            topics[t] = new Uuid(random.nextLong(), random.nextLong());
        }
        for (int k = 0; k < all.length; k++) {
            int within = k % perGroup;
            all[k] = new SharePartition(SharePartitionKey.getInstance("share-group-" + k / perGroup,
                topics[within / PARTITIONS_PER_TOPIC], within % PARTITIONS_PER_TOPIC), random.split());
        }
        return all;
    }

    /** One share-partition: its state as the coordinator holds it, and the consumers that change it. */
    private final class SharePartition {
        private final SharePartitionKey key;
        private final int hash;
        private final SplittableRandom random;
        private ShareGroupOffset state;
        private boolean readByLeader;
        private int updates;
        private long nextStart;
        private long nextOffset;

        SharePartition(SharePartitionKey key, SplittableRandom random) {
            this.key = key;
            this.random = random;
            hash = Utils.abs(key.asCoordinatorKey().hashCode()); // ShareCoordinatorService.partitionFor
        }

        /** The next record that the coordinator writes for this share-partition. */
        CoordinatorRecord next(long now) {
            if (state == null) {
                return initialize(now);
            }
            if (!readByLeader || random.nextInt(5000) == 0) {
                return readByNewLeader();
            }
            return write(now);
        }

        private CoordinatorRecord initialize(long now) {
            state = with(0, 1, 0, -1, -1, List.of(), now);
            nextStart = nextOffset = random.nextInt(1_000_000);
            return snapshot();
        }

        private CoordinatorRecord readByNewLeader() {
            readByLeader = true;
            updates++;
            state = with(
                state.snapshotEpoch(), state.stateEpoch(), state.leaderEpoch() + 1, state.startOffset(),
                state.deliveryCompleteCount(), state.stateBatches(), state.writeTimestamp());
            return update(state.startOffset(), List.of());
        }

        private CoordinatorRecord write(long now) {
            List<PersisterStateBatch> acknowledged = acknowledgements();
            long start = nextStart;
            List<PersisterStateBatch> merged = combine(state.stateBatches(), acknowledged, start);
            int complete = 0;
            for (PersisterStateBatch batch : merged) {
                if (batch.deliveryState() != AVAILABLE) {
                    complete += (int) (batch.lastOffset() - batch.firstOffset() + 1);
                    nextStart = batch.firstOffset() == nextStart ? batch.lastOffset() + 1 : nextStart;
                }
            }
            boolean isSnapshot = updates == UPDATES_PER_SNAPSHOT;
            updates = isSnapshot ? 0 : updates + 1;
            state = with(
                state.snapshotEpoch() + (isSnapshot ? 1 : 0), state.stateEpoch(), state.leaderEpoch(), start, complete, merged,
                isSnapshot ? now : state.writeTimestamp());
            return isSnapshot ? snapshot() : update(start, combine(List.of(), acknowledged, start));
        }

        private static List<PersisterStateBatch> combine(
            List<PersisterStateBatch> current, List<PersisterStateBatch> changes, long start) {
            return new PersisterStateBatchCombiner(current, changes, start).combineStateBatches();
        }

        /** What consumers did since the last write: they take new offsets until the window is full, then finish old. */
        private List<PersisterStateBatch> acknowledgements() {
            List<PersisterStateBatch> open = unfinished();
            List<PersisterStateBatch> changes = new ArrayList<>();
            int ranges = state.stateBatches().size();
            int full = 8 * number("ranges") / 7; // adjacent ranges join and the start advances: the mean is `ranges`
            for (int i = number("batches_per_update"); i > 0; i--) {
                if (ranges < full || open.isEmpty()) {
                    changes.add(deliver());
                    ranges++;
                } else if (random.nextInt(5) < 3) {
                    PersisterStateBatch oldest = open.remove(0);
                    changes.add(finish(oldest.firstOffset(), oldest.lastOffset(), oldest.deliveryCount()));
                    ranges--;
                } else {
                    changes.add(redeliver(open.remove(random.nextInt(open.size()))));
                }
            }
            return changes;
        }

        /** Ranges that were released, and gaps, which were never persisted (count 0). */
        private List<PersisterStateBatch> unfinished() {
            List<PersisterStateBatch> open = new ArrayList<>();
            long expected = nextStart;
            for (PersisterStateBatch batch : state.stateBatches()) {
                if (batch.firstOffset() > expected) {
                    open.add(new PersisterStateBatch(expected, batch.firstOffset() - 1, AVAILABLE, (short) 0));
                }
                if (batch.deliveryState() == AVAILABLE && batch.lastOffset() >= expected) {
                    open.add(batch);
                }
                expected = Math.max(expected, batch.lastOffset() + 1);
            }
            return open;
        }

        private PersisterStateBatch deliver() {
            if (random.nextInt(8) == 0) {
                nextOffset += 1 + random.nextInt(20); // acquired by a slow consumer: nothing is persisted
            }
            long first = nextOffset;
            nextOffset += 1 + random.nextInt(50);
            int outcome = random.nextInt(20);
            byte result = outcome < 12 ? ACKNOWLEDGED : outcome < 18 ? AVAILABLE : ARCHIVED;
            return new PersisterStateBatch(first, nextOffset - 1, result, (short) 1);
        }

        private PersisterStateBatch finish(long first, long last, int count) {
            byte result = random.nextInt(10) == 0 ? ARCHIVED : ACKNOWLEDGED;
            return new PersisterStateBatch(first, last, result, (short) (count + 1));
        }

        private PersisterStateBatch redeliver(PersisterStateBatch range) {
            long first = range.firstOffset() + random.nextLong(range.lastOffset() - range.firstOffset() + 1);
            long last = first + random.nextLong(range.lastOffset() - first + 1);
            if (range.deliveryCount() < 2 && random.nextInt(4) == 0) {
                return new PersisterStateBatch(first, last, AVAILABLE, (short) (range.deliveryCount() + 1));
            }
            return finish(first, last, range.deliveryCount());
        }

        private ShareGroupOffset with(
            int snapshotEpoch, int stateEpoch, int leaderEpoch, long start, int complete,
            List<PersisterStateBatch> batches, long timestamp) {
            return new ShareGroupOffset.Builder()
                .setSnapshotEpoch(snapshotEpoch).setStateEpoch(stateEpoch).setLeaderEpoch(leaderEpoch)
                .setStartOffset(start).setDeliveryCompleteCount(complete).setStateBatches(batches)
                .setCreateTimestamp(timestamp).setWriteTimestamp(timestamp).build();
        }

        private CoordinatorRecord snapshot() {
            return ShareCoordinatorRecordHelpers.newShareSnapshotRecord(
                key.groupId(), key.topicId(), key.partition(), state);
        }

        private CoordinatorRecord update(long start, List<PersisterStateBatch> batches) {
            return ShareCoordinatorRecordHelpers.newShareUpdateRecord(
                key.groupId(), key.topicId(), key.partition(), with(state.snapshotEpoch(), 0, state.leaderEpoch(),
                start, state.deliveryCompleteCount(), batches, 0));
        }
    }

    /** The log of one state partition: records are collected into batches, batches into segments. */
    private final class StateLog {
        private final Path folder;
        private final Compression compression = Compression.of(options.get("codec")).build();
        private final int batchSize = number("batch_size");
        private final List<SimpleRecord> batch = new ArrayList<>();
        private FileRecords segment;
        private long nextOffset;

        StateLog(Path folder) {
            this.folder = folder;
        }

        void append(long timestamp, byte[] key, byte[] value) throws IOException {
            batch.add(new SimpleRecord(timestamp, key, value));
            if (batch.size() == batchSize) {
                flush();
            }
        }

        void flush() throws IOException {
            if (batch.isEmpty()) {
                return;
            }
            SimpleRecord[] records = batch.toArray(SimpleRecord[]::new);
            MemoryRecords built = MemoryRecords.withRecords(nextOffset, compression, 0, records);
            if (segment == null || segment.sizeInBytes() + built.sizeInBytes() > SEGMENT_BYTES) {
                segment = FileRecords.open(folder.resolve(String.format("%020d.log", nextOffset)).toFile());
            }
            segment.append(built);
            nextOffset += records.length;
            batch.clear();
        }
    }
}
