import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
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
import org.apache.kafka.coordinator.common.runtime.Deserializer;
import org.apache.kafka.coordinator.common.runtime.SnapshottableCoordinator;
import org.apache.kafka.coordinator.share.ShareCoordinatorConfig;
import org.apache.kafka.coordinator.share.ShareCoordinatorRecordSerde;
import org.apache.kafka.coordinator.share.ShareCoordinatorShard;
import org.apache.kafka.coordinator.share.ShareGroupOffset;
import org.apache.kafka.coordinator.share.metrics.ShareCoordinatorMetrics;
import org.apache.kafka.server.share.SharePartitionKey;
import org.apache.kafka.timeline.SnapshotRegistry;

/**
 * Replays exports of __share_group_state as a broker does when it becomes coordinator: CoordinatorLoaderImpl's loop
 * around Kafka's own serde and ShareCoordinatorShard, on one thread, one state partition after the other.
 *
 * <p>Reads folders from standard input, one a line; each line is one pass over that folder, answered by one line of
 * JSON. The process stays, so later passes find it warm. Two numbers of CPU time: of the replaying thread, and of the
 * whole process between the same two moments (garbage collection and JIT compilation counted). The digest is taken
 * with both clocks stopped. A line "states FOLDER" is answered by one line of JSON a live share-partition, then {}.
 */
public final class Replay {
    private static final String TOPIC = "__share_group_state";
    // The defaults of share.coordinator.load.buffer.size and CoordinatorLoaderImpl.DEFAULT_COMMIT_INTERVAL_OFFSETS.
    private static final int LOAD_BUFFER = 5 * 1024 * 1024;
    private static final long COMMIT_INTERVAL_OFFSETS = 16384;

    private static final OperatingSystemMXBean PROCESS =
        (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

    private final ShareCoordinatorConfig config =
        new ShareCoordinatorConfig(new AbstractConfig(ShareCoordinatorConfig.CONFIG_DEF, Map.of(), false));
    private final ShareCoordinatorMetrics metrics = new ShareCoordinatorMetrics();
    private final ShareCoordinatorRecordSerde serde = new ShareCoordinatorRecordSerde();
    private long records;
    private long bytes;

    public static void main(String[] args) throws Exception {
        BufferedReader folders = new BufferedReader(new InputStreamReader(System.in));
        for (String line = folders.readLine(); line != null; line = folders.readLine()) {
            if (line.startsWith("states ")) {
                new Replay().printStates(Path.of(line.substring("states ".length())));
            } else {
                System.out.println(new Replay().pass(Path.of(line)));
            }
            System.out.flush();
        }
    }

    private String pass(Path folder) throws Exception {
        long wall = 0;
        long processCpu = 0;
        long threadCpu = 0;
        Digest digest = new Digest();
        for (Path log : stateLogs(folder)) {
            long wallBefore = System.nanoTime();
            long processBefore = PROCESS.getProcessCpuTime();
            long threadBefore = THREADS.getCurrentThreadCpuTime();
            ShareCoordinatorShard shard = load(log);
            threadCpu += THREADS.getCurrentThreadCpuTime() - threadBefore;
            processCpu += PROCESS.getProcessCpuTime() - processBefore;
            wall += System.nanoTime() - wallBefore;
            states(shard).forEach(digest::add);
        }
        return String.format(
            "{\"records\": %d, \"bytes\": %d, \"wall_s\": %.6f, \"cpu_s\": %.6f, \"thread_cpu_s\": %.6f, "
                + "\"peak_bytes\": %d, \"digest\": %s}",
            records, bytes, wall / 1e9, processCpu / 1e9, threadCpu / 1e9, peakBytes(), digest);
    }

    private void printStates(Path folder) throws Exception {
        for (Path log : stateLogs(folder)) {
            states(load(log)).forEach((key, state) -> System.out.println(Digest.describe(key, state)));
        }
        System.out.println("{}");
    }

    /** CoordinatorLoaderImpl.doLoad and processMemoryRecords, over closed segments in place of a UnifiedLog. */
    private ShareCoordinatorShard load(Path log) throws IOException {
        TopicPartition partition = new TopicPartition(TOPIC, partitionOf(log));
        LogContext context = new LogContext();
        SnapshotRegistry registry = new SnapshotRegistry(context);
        ShareCoordinatorShard.Builder builder = new ShareCoordinatorShard.Builder(config);
        builder.withSnapshotRegistry(registry).withLogContext(context).withTime(Time.SYSTEM)
            .withCoordinatorMetrics(metrics).withTopicPartition(partition);
        ShareCoordinatorShard shard = builder.build();
        SnapshottableCoordinator<ShareCoordinatorShard, CoordinatorRecord> coordinator =
            new SnapshottableCoordinator<>(context, registry, shard, partition);

        ByteBuffer buffer = ByteBuffer.allocate(LOAD_BUFFER);
        long current = 0;
        long committed = -1;
        for (Path segment : segments(log)) {
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
                        if (slice.sizeInBytes() < buffer.capacity()) {
                            throw new IOException(segment + ": the file ends inside a batch");
                        }
                        buffer = ByteBuffer.allocate(2 * buffer.capacity());
                    }
                    position += used;
                    bytes += used;
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
            CoordinatorRecord decoded;
            try {
                decoded = serde.deserialize(record.key(), record.value());
            } catch (Deserializer.UnknownRecordTypeException unknown) {
                continue;
            }
            coordinator.replay(record.offset(), batch.producerId(), batch.producerEpoch(), decoded);
        }
    }

    private static List<Path> stateLogs(Path folder) throws IOException {
        try (Stream<Path> found = Files.list(folder)) {
            return found.filter(path -> path.getFileName().toString().matches(TOPIC + "-\\d+"))
                .sorted(Comparator.comparingInt(Replay::partitionOf)).toList();
        }
    }

    private static List<Path> segments(Path log) throws IOException {
        try (Stream<Path> found = Files.list(log)) {
            return found.filter(path -> path.getFileName().toString().matches("\\d{20}\\.log")).sorted().toList();
        }
    }

    private static int partitionOf(Path log) {
        String name = log.getFileName().toString();
        return Integer.parseInt(name.substring(name.lastIndexOf('-') + 1));
    }

    /** The shard's own map; no public method lists it. */
    @SuppressWarnings("unchecked")
    private static Map<SharePartitionKey, ShareGroupOffset> states(ShareCoordinatorShard shard) throws Exception {
        Field field = ShareCoordinatorShard.class.getDeclaredField("shareStateMap");
        field.setAccessible(true);
        return (Map<SharePartitionKey, ShareGroupOffset>) field.get(shard);
    }

    private static long peakBytes() throws IOException {
        for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
            if (line.startsWith("VmHWM:")) {
                return 1024 * Long.parseLong(line.replaceAll("\\D", ""));
            }
        }
        throw new IOException("/proc/self/status has no VmHWM");
    }
}
