import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.AbstractConfig;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.internals.LogContext;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.common.runtime.SnapshottableCoordinator;
import org.apache.kafka.coordinator.share.PersisterStateBatchCombiner;
import org.apache.kafka.coordinator.share.ShareCoordinatorConfig;
import org.apache.kafka.coordinator.share.ShareCoordinatorRecordSerde;
import org.apache.kafka.coordinator.share.ShareCoordinatorShard;
import org.apache.kafka.coordinator.share.ShareGroupOffset;
import org.apache.kafka.coordinator.share.metrics.ShareCoordinatorMetrics;
import org.apache.kafka.server.share.SharePartitionKey;
import org.apache.kafka.server.share.persister.PersisterStateBatch;
import org.apache.kafka.timeline.SnapshotRegistry;

/**
 * Replays exports of __share_group_state as a broker does when it becomes coordinator: the loop of
 * CoordinatorLoaderImpl around Kafka's serde and ShareCoordinatorShard, one thread, one state partition after the other.
 *
 * <p>Each line of standard input is a folder, a tab, and a file or nothing. The answer is one line of JSON; the process
 * stays, so that later passes run warm. CPU time is of the whole process, with garbage collection and JIT compilation. The file receives a line per live share-partition, while no clock runs.
 */
public final class Replay {
    private static final String TOPIC = "__share_group_state";
    // The defaults of share.coordinator.load.buffer.size and CoordinatorLoaderImpl.DEFAULT_COMMIT_INTERVAL_OFFSETS.
    private static final int LOAD_BUFFER = 5 * 1024 * 1024;
    private static final long COMMIT_INTERVAL_OFFSETS = 16384;

    private static final OperatingSystemMXBean PROCESS =
        (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private final ShareCoordinatorConfig config =
        new ShareCoordinatorConfig(new AbstractConfig(ShareCoordinatorConfig.CONFIG_DEF, Map.of(), false));
    private final ShareCoordinatorMetrics metrics = new ShareCoordinatorMetrics();
    private final ShareCoordinatorRecordSerde serde = new ShareCoordinatorRecordSerde();
    private long records;

    public static void main(String[] args) throws Exception {
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            String[] request = line.split("\t", -1);
            System.out.println(new Replay().pass(Path.of(request[0]), request[1]));
            System.out.flush();
        }
    }

    private String pass(Path folder, String statesFile) throws Exception {
        long wall = 0;
        long cpu = 0;
        List<String> states = new ArrayList<>();
        for (Path log : list(folder, TOPIC + "-\\d+")) {
            long wallBefore = System.nanoTime();
            long cpuBefore = PROCESS.getProcessCpuTime();
            ShareCoordinatorShard shard = load(log);
            cpu += PROCESS.getProcessCpuTime() - cpuBefore;
            wall += System.nanoTime() - wallBefore;
            if (!statesFile.isEmpty()) {
                states(shard).forEach((key, state) -> states.add(describe(key, state)));
            }
        }
        if (!statesFile.isEmpty()) {
            Files.write(Path.of(statesFile), states);
        }
        return String.format(
            "{\"records\": %d, \"wall_s\": %.6f, \"cpu_s\": %.6f}", records, wall / 1e9, cpu / 1e9);
    }

    /** Key, scalars and ranges; combined with nothing, the ranges of a replayed snapshot come out in canonical form. */
    private static String describe(SharePartitionKey key, ShareGroupOffset state) {
        Stream<PersisterStateBatch> ranges =
            new PersisterStateBatchCombiner(state.stateBatches(), List.of(), -1).combineStateBatches().stream();
        return String.format(
            "%s %d %d %d %d %d %d %d %s",
            key.asCoordinatorKey(), state.startOffset(), state.deliveryCompleteCount(), state.snapshotEpoch(),
            state.stateEpoch(), state.leaderEpoch(), state.createTimestamp(), state.writeTimestamp(),
            ranges.map(range -> range.firstOffset() + "-" + range.lastOffset() + ":" + range.deliveryState() + ":"
                + range.deliveryCount()).collect(Collectors.joining(" "))).strip();
    }

    /** CoordinatorLoaderImpl.doLoad and processMemoryRecords, over closed segments instead of a UnifiedLog. */
    private ShareCoordinatorShard load(Path log) throws IOException {
        int number = Integer.parseInt(log.getFileName().toString().replace(TOPIC + "-", ""));
        TopicPartition partition = new TopicPartition(TOPIC, number);
        LogContext context = new LogContext();
        SnapshotRegistry registry = new SnapshotRegistry(context);
        ShareCoordinatorShard shard = new ShareCoordinatorShard.Builder(config)
            .withSnapshotRegistry(registry).withLogContext(context).withTime(Time.SYSTEM)
            .withCoordinatorMetrics(metrics).withTopicPartition(partition).build();
        var coordinator = new SnapshottableCoordinator<>(context, registry, shard, partition);

        ByteBuffer buffer = ByteBuffer.allocate(LOAD_BUFFER);
        long current = 0;
        long committed = -1;
        for (Path segment : list(log, "\\d{20}\\.log")) {
            try (FileRecords file = FileRecords.open(segment.toFile(), false)) {
                int position = 0;
                while (position < file.sizeInBytes()) {
                    FileRecords slice = file.slice(position, buffer.capacity());
                    buffer.clear();
                    slice.readInto(buffer, 0);
                    int used = 0;
                    for (MutableRecordBatch batch : MemoryRecords.readableRecords(buffer).batches()) {
                        used += batch.sizeInBytes();
                        if (!batch.isControlBatch()) {
                            replay(batch, coordinator);
                        }
                        current = batch.nextOffset();
                        if (current - committed >= COMMIT_INTERVAL_OFFSETS) {
                            coordinator.updateLastWrittenOffset(current);
                            coordinator.updateLastCommittedOffset(current);
                            committed = current;
                        }
                    }
                    if (used == 0) {
                        throw new IOException(segment + ": the file ends inside a batch, or one is too large");
                    }
                    position += used;
                }
            }
        }
        coordinator.updateLastWrittenOffset(current);
        coordinator.updateLastCommittedOffset(current);
        return shard;
    }

    private void replay(
        MutableRecordBatch batch, SnapshottableCoordinator<ShareCoordinatorShard, CoordinatorRecord> coordinator) {
        for (Record record : batch) {
            records++;
            CoordinatorRecord decoded = serde.deserialize(record.key(), record.value());
            coordinator.replay(record.offset(), batch.producerId(), batch.producerEpoch(), decoded);
        }
    }

    private static List<Path> list(Path folder, String names) throws IOException {
        try (Stream<Path> found = Files.list(folder)) {
            return found.filter(path -> path.getFileName().toString().matches(names)).sorted().toList();
        }
    }

    /** The shard's map, which no public method exposes. */
    @SuppressWarnings("unchecked")
    private static Map<SharePartitionKey, ShareGroupOffset> states(ShareCoordinatorShard shard) throws Exception {
        Field field = ShareCoordinatorShard.class.getDeclaredField("shareStateMap");
        field.setAccessible(true);
        return (Map<SharePartitionKey, ShareGroupOffset>) field.get(shard);
    }
}
