import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.stream.Collectors;
import java.util.zip.CRC32;
import org.apache.kafka.coordinator.share.PersisterStateBatchCombiner;
import org.apache.kafka.coordinator.share.ShareGroupOffset;
import org.apache.kafka.server.share.SharePartitionKey;
import org.apache.kafka.server.share.persister.PersisterStateBatch;

/**
 * A few numbers of the folded state, the same whatever the order of share-partitions; bench/digest.py computes them
 * from this project's tables, so that both sides can be seen to have done the same work.
 */
final class Digest {
    private long sharePartitions;
    private long startOffsets;
    private long ranges;
    private long mix;

    void add(SharePartitionKey key, ShareGroupOffset state) {
        CRC32 crc = new CRC32();
        crc.update(key.asCoordinatorKey().getBytes(StandardCharsets.UTF_8));
        long seed = crc.getValue();
        long scalars = stir(stir(seed, state.startOffset()), state.deliveryCompleteCount());
        scalars = stir(stir(stir(scalars, state.snapshotEpoch()), state.stateEpoch()), state.leaderEpoch());
        mix += stir(stir(scalars, state.createTimestamp()), state.writeTimestamp());
        List<PersisterStateBatch> canonical = canonical(state);
        for (PersisterStateBatch batch : canonical) {
            long offsets = stir(stir(seed, batch.firstOffset()), batch.lastOffset());
            mix += stir(offsets, 256L * batch.deliveryCount() + batch.deliveryState());
        }
        sharePartitions++;
        startOffsets += state.startOffset();
        ranges += canonical.size();
    }

    /** One share-partition as a line of JSON: key, scalars in the order of the digest, ranges. */
    static String describe(SharePartitionKey key, ShareGroupOffset state) {
        return String.format(
            "{\"key\": \"%s\", \"scalars\": [%d, %d, %d, %d, %d, %d, %d], \"ranges\": [%s]}",
            key.asCoordinatorKey(), state.startOffset(), state.deliveryCompleteCount(), state.snapshotEpoch(),
            state.stateEpoch(), state.leaderEpoch(), state.createTimestamp(), state.writeTimestamp(),
            canonical(state).stream().map(batch -> String.format(
                "[%d, %d, %d, %d]",
                batch.firstOffset(), batch.lastOffset(), batch.deliveryState(), batch.deliveryCount()))
                .collect(Collectors.joining(", ")));
    }

    /** Combined with nothing, a list comes out in canonical form: a replayed snapshot is kept as it was written. */
    private static List<PersisterStateBatch> canonical(ShareGroupOffset state) {
        return new PersisterStateBatchCombiner(state.stateBatches(), List.of(), -1).combineStateBatches();
    }

    private static long stir(long hash, long value) {
        long product = (hash ^ value) * 0x9E3779B97F4A7C15L;
        return product ^ (product >>> 32);
    }

    @Override
    public String toString() {
        return String.format(
            "{\"share_partitions\": %d, \"start_offsets\": %d, \"ranges\": %d, \"mix\": \"%016x\"}",
            sharePartitions, startOffsets, ranges, mix);
    }
}
