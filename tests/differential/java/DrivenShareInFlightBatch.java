package org.apache.kafka.clients.consumer.internals;

import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;

/** What Kafka's share consumer keeps of the records of one share-partition, with simple arguments and answers. */
public final class DrivenShareInFlightBatch {
    private final ShareInFlightBatch<String, String> batch = new ShareInFlightBatch<>(
        1, new TopicIdPartition(Uuid.ONE_UUID, new TopicPartition("t", 0)), Optional.of(30_000));
    private Acknowledgements taken = Acknowledgements.empty();

    private static ConsumerRecord<String, String> record(long offset) {
        return new ConsumerRecord<>("t", 0, offset, "", "");
    }

    public void add(long offset) {
        batch.addRecord(record(offset));
    }

    public void gap(long offset) {
        batch.addGap(offset);
    }

    /** False where the application gets an IllegalStateException. */
    public boolean acknowledge(long offset, int type) {
        try {
            batch.acknowledge(record(offset), AcknowledgeType.forId((byte) type));
            return true;
        } catch (IllegalStateException error) {
            return false;
        }
    }

    public void acceptAll() {
        batch.acknowledgeAll(AcknowledgeType.ACCEPT);
    }

    public boolean allAcknowledged() {
        return batch.checkAllInFlightAreAcknowledged();
    }

    /** The acknowledgements to send, such as "3:1 4:0". */
    public String take() {
        taken = batch.takeAcknowledgedRecords();
        List<String> said = new ArrayList<>();
        for (AcknowledgementBatch one : taken.getAcknowledgementBatches()) {
            List<Byte> types = one.acknowledgeTypes();
            for (long offset = one.firstOffset(); offset <= one.lastOffset(); offset++) {
                int place = types.size() == 1 ? 0 : (int) (offset - one.firstOffset());
                said.add(offset + ":" + types.get(place));
            }
        }
        return String.join(" ", said);
    }

    /** The outcome of what was taken last. */
    public void complete(boolean succeeds) {
        taken.complete(succeeds ? null : new KafkaException("refused"));
        batch.renew(taken);
    }

    public boolean hasRenewals() {
        return batch.hasRenewals();
    }

    public void takeRenewals() {
        batch.takeRenewals();
    }

    public String inFlight() {
        return batch.getInFlightRecords().stream().map(ConsumerRecord::offset).sorted().map(String::valueOf)
            .collect(Collectors.joining(" "));
    }
}
