package kafka.server.share;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.server.share.persister.DeleteShareGroupStateParameters;
import org.apache.kafka.server.share.persister.DeleteShareGroupStateResult;
import org.apache.kafka.server.share.persister.InitializeShareGroupStateParameters;
import org.apache.kafka.server.share.persister.InitializeShareGroupStateResult;
import org.apache.kafka.server.share.persister.PartitionFactory;
import org.apache.kafka.server.share.persister.PartitionStateBatchData;
import org.apache.kafka.server.share.persister.Persister;
import org.apache.kafka.server.share.persister.PersisterStateBatch;
import org.apache.kafka.server.share.persister.ReadShareGroupStateParameters;
import org.apache.kafka.server.share.persister.ReadShareGroupStateResult;
import org.apache.kafka.server.share.persister.ReadShareGroupStateSummaryParameters;
import org.apache.kafka.server.share.persister.ReadShareGroupStateSummaryResult;
import org.apache.kafka.server.share.persister.TopicData;
import org.apache.kafka.server.share.persister.WriteShareGroupStateParameters;
import org.apache.kafka.server.share.persister.WriteShareGroupStateResult;

/** Answers reads with what it was given, and keeps writes unanswered until it is told what became of them. */
final class HeldPersister implements Persister {
    private final TopicIdPartition topicIdPartition;
    private final int stateEpoch;
    private final long startOffset;
    private final List<PersisterStateBatch> batches;
    private final Deque<CompletableFuture<WriteShareGroupStateResult>> unanswered = new ArrayDeque<>();
    private List<PartitionStateBatchData> written = new ArrayList<>();

    HeldPersister(TopicIdPartition partition, int stateEpoch, long startOffset, List<PersisterStateBatch> batches) {
        this.topicIdPartition = partition;
        this.stateEpoch = stateEpoch;
        this.startOffset = startOffset;
        this.batches = batches;
    }

    @Override
    public CompletableFuture<ReadShareGroupStateResult> readState(ReadShareGroupStateParameters request) {
        return CompletableFuture.completedFuture(new ReadShareGroupStateResult.Builder().setTopicsData(List.of(
            new TopicData<>(topicIdPartition.topicId(), List.of(PartitionFactory.newPartitionAllData(
                topicIdPartition.partition(), stateEpoch, startOffset, Errors.NONE.code(), "", batches))))).build());
    }

    @Override
    public CompletableFuture<WriteShareGroupStateResult> writeState(WriteShareGroupStateParameters request) {
        written.add(request.groupTopicPartitionData().topicsData().get(0).partitions().get(0));
        CompletableFuture<WriteShareGroupStateResult> answer = new CompletableFuture<>();
        unanswered.add(answer);
        return answer;
    }

    /** Answers the oldest write. */
    void answer(Errors error) {
        unanswered.remove().complete(new WriteShareGroupStateResult.Builder().setTopicsData(List.of(
            new TopicData<>(topicIdPartition.topicId(), List.of(PartitionFactory.newPartitionErrorData(
                topicIdPartition.partition(), error.code(), error.message()))))).build());
    }

    /** What was written since the last call. */
    List<PartitionStateBatchData> written() {
        List<PartitionStateBatchData> found = written;
        written = new ArrayList<>();
        return found;
    }

    @Override
    public CompletableFuture<InitializeShareGroupStateResult> initializeState(
        InitializeShareGroupStateParameters request) {
        throw new UnsupportedOperationException("the group coordinator asks for this, no share-partition does");
    }

    @Override
    public CompletableFuture<DeleteShareGroupStateResult> deleteState(DeleteShareGroupStateParameters request) {
        throw new UnsupportedOperationException("the group coordinator asks for this, no share-partition does");
    }

    @Override
    public CompletableFuture<ReadShareGroupStateSummaryResult> readSummary(
        ReadShareGroupStateSummaryParameters request) {
        throw new UnsupportedOperationException("the group coordinator asks for this, no share-partition does");
    }

    @Override
    public void stop() {
    }
}
