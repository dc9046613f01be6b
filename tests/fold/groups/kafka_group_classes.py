"""Kafka's own group coordinator and sticky assignor inside the Spark JVM; see tests/kafka_classes.py for how."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError

from share_state.simulator.assignor import Assignment
from tests.kafka_classes import RefusedByKafkaError, constructor

# Written for Janino, which knows neither generics nor lambdas.
_JAVA = """
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.internals.AbstractStickyAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataDelta;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataImage;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordSerde;
import org.apache.kafka.coordinator.group.Utils;
import org.apache.kafka.coordinator.group.api.assignor.GroupAssignment;
import org.apache.kafka.coordinator.group.api.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.SimpleAssignor;
import org.apache.kafka.coordinator.group.generated.CoordinatorRecordJsonConverters;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;

public class CLASS_NAME {
    public String read(byte[] key, byte[] value) throws Exception {
        CoordinatorRecord record = (CoordinatorRecord) new GroupCoordinatorRecordSerde()
            .deserialize(ByteBuffer.wrap(key), ByteBuffer.wrap(value));
        return CoordinatorRecordJsonConverters.writeRecordValueAsJson(
            record.value().message(), record.value().version()).toString();
    }

    public String owned(List names, List subscriptions, List topics, boolean cooperative) throws Exception {
        Map byName = new LinkedHashMap();
        for (int i = 0; i < names.size(); i++) {
            byName.put(names.get(i), ConsumerProtocol.deserializeSubscription(
                ByteBuffer.wrap((byte[]) subscriptions.get(i))));
        }
        Method method = AbstractStickyAssignor.class.getDeclaredMethod(
            "allSubscriptionsEqual", new Class[] {Set.class, Map.class, Map.class, Set.class});
        method.setAccessible(true);
        Map owned = new HashMap();
        Object assignor = cooperative ? (Object) new CooperativeStickyAssignor() : (Object) new StickyAssignor();
        method.invoke(assignor, new Object[] {new HashSet(topics), byName, owned, new HashSet()});
        Map answer = new HashMap();
        for (Iterator all = owned.entrySet().iterator(); all.hasNext();) {
            Map.Entry one = (Map.Entry) all.next();
            List places = new ArrayList();
            for (Iterator of = ((List) one.getValue()).iterator(); of.hasNext();) {
                TopicPartition place = (TopicPartition) of.next();
                places.add(new Object[] {place.topic(), Integer.valueOf(place.partition())});
            }
            answer.put(one.getKey(), places);
        }
        return new ObjectMapper().writeValueAsString(answer);
    }

    public String assign(String given) throws Exception {
        Map asked = (Map) new ObjectMapper().readValue(given, LinkedHashMap.class);
        Map members = new HashMap();
        boolean same = true;
        Set first = null;
        for (Iterator all = ((Map) asked.get("subscriptions")).entrySet().iterator(); all.hasNext();) {
            Map.Entry one = (Map.Entry) all.next();
            Set topics = new HashSet();
            for (Iterator of = ((List) one.getValue()).iterator(); of.hasNext();) {
                topics.add(Uuid.fromString((String) of.next()));
            }
            same = same && (first == null || first.equals(topics));
            first = topics;
            Map before = (Map) ((Map) asked.get("current")).get(one.getKey());
            members.put(one.getKey(), new MemberSubscriptionAndAssignmentImpl(
                Optional.empty(), Optional.empty(), topics,
                before == null ? Assignment.EMPTY : new Assignment(sets(before))));
        }
        final Map assignable = sets((Map) asked.get("assignable"));
        SubscribedTopicDescriber describer = new SubscribedTopicDescriber() {
            public int numPartitions(Uuid topic) {
                int count = 0;
                Set of = (Set) assignable.get(topic);
                for (Iterator all = of == null ? new HashSet().iterator() : of.iterator(); all.hasNext();) {
                    count = Math.max(count, ((Integer) all.next()).intValue() + 1);
                }
                return count;
            }
            public Set racksForPartition(Uuid topic, int partition) { return new HashSet(); }
        };
        GroupAssignment made = new SimpleAssignor().assign(
            new GroupSpecImpl(members, same ? SubscriptionType.HOMOGENEOUS : SubscriptionType.HETEROGENEOUS,
                new HashMap(), Optional.of(assignable)), describer);
        Map answer = new HashMap();
        for (Iterator all = made.members().entrySet().iterator(); all.hasNext();) {
            Map.Entry one = (Map.Entry) all.next();
            Map told = new HashMap();
            Map of = ((MemberAssignment) one.getValue()).partitions();
            for (Iterator topics = of.entrySet().iterator(); topics.hasNext();) {
                Map.Entry topic = (Map.Entry) topics.next();
                told.put(topic.getKey().toString(), topic.getValue());
            }
            answer.put(one.getKey(), told);
        }
        return new ObjectMapper().writeValueAsString(answer);
    }

    private static Map sets(Map lists) {
        Map sets = new HashMap();
        for (Iterator all = lists.entrySet().iterator(); all.hasNext();) {
            Map.Entry one = (Map.Entry) all.next();
            sets.put(Uuid.fromString((String) one.getKey()), numbers((List) one.getValue()));
        }
        return sets;
    }

    private static Set numbers(List list) {
        Set numbers = new HashSet();
        for (Iterator all = list.iterator(); all.hasNext();) {
            numbers.add(all.next());
        }
        return numbers;
    }

    public long topicHash(final String topic, final String name, final String racks) throws Exception {
        final List ofPartitions = (List) new ObjectMapper().readValue(racks, ArrayList.class);
        final CoordinatorMetadataImage.TopicMetadata told = new CoordinatorMetadataImage.TopicMetadata() {
            public String name() { return name; }
            public Uuid id() { return Uuid.fromString(topic); }
            public int partitionCount() { return ofPartitions.size(); }
            public List partitionRacks(int partition) { return (List) ofPartitions.get(partition); }
        };
        return Utils.computeTopicHash(name, new CoordinatorMetadataImage() {
            public Set topicIds() { return new HashSet(); }
            public Set topicNames() { return new HashSet(); }
            public Optional topicMetadata(String asked) { return Optional.of(told); }
            public Optional topicMetadata(Uuid asked) { return Optional.of(told); }
            public CoordinatorMetadataDelta emptyDelta() { return null; }
            public long version() { return 0L; }
            public boolean isEmpty() { return false; }
        });
    }

    public long groupHash(List names, List hashes) {
        Map topics = new HashMap();
        for (int i = 0; i < names.size(); i++) {
            topics.put(names.get(i), Long.valueOf((String) hashes.get(i)));
        }
        return Utils.computeGroupHash(topics);
    }
}
"""


class KafkaGroups:
    """Kafka's classes about groups, of one release.

    Args:
        jvm: of a Spark session.
        jars: of that release, kafka-group-coordinator among them.
    """

    def __init__(self, jvm: Any, jars: list[Path]) -> None:
        self._jvm = jvm
        self._java = constructor(jvm, tuple(jars), _JAVA).newInstance(jvm.java.util.ArrayList().toArray())

    def read(self, key: bytes, value: bytes) -> dict[str, Any]:
        """The value of a record as Kafka's tools print it.

        Raises:
            RefusedByKafkaError: if Kafka cannot read it.
        """
        try:
            return json.loads(self._java.read(key, value))
        except Py4JJavaError as error:
            raise RefusedByKafkaError(error.java_exception.toString()) from None

    def owned(
        self, subscriptions: Sequence[tuple[str, bytes]], topics: Sequence[str], *, cooperative: bool = False
    ) -> dict[tuple[str, int], str]:
        """Who had which partition, by Kafka's rule, the members met in this order."""
        names, written = self._jvm.java.util.ArrayList(), self._jvm.java.util.ArrayList()
        for name, data in subscriptions:
            names.add(name)
            written.add(data)
        wanted = self._jvm.java.util.ArrayList()
        for topic in topics:
            wanted.add(topic)
        answer = json.loads(self._java.owned(names, written, wanted, cooperative))
        return {(topic, partition): name for name, places in answer.items() for topic, partition in places}

    def assign(
        self,
        subscriptions: Mapping[str, Sequence[str]],
        assignable: Mapping[str, Sequence[int]],
        current: Mapping[str, Mapping[str, Sequence[int]]],
    ) -> Assignment:
        """As `simulator.assignor.assign`, without topics of which a member has no partition.

        Raises:
            RefusedByKafkaError: if Kafka's assignor fails.
        """
        asked = {"subscriptions": subscriptions, "assignable": assignable, "current": current}
        try:
            made = json.loads(self._java.assign(json.dumps(asked)))
        except Py4JJavaError as error:
            raise RefusedByKafkaError(error.java_exception.toString()) from None
        return {
            member: {topic: sorted(numbers) for topic, numbers in sorted(assigned.items()) if numbers}
            for member, assigned in made.items()
        }

    def topic_hash(self, topic_id: str, name: str, racks: Sequence[Sequence[str]]) -> int:
        """As `simulator.metadata_hash.topic_hash`."""
        return self._java.topicHash(topic_id, name, json.dumps(racks))

    def group_hash(self, topics: Mapping[str, int]) -> int:
        """As `simulator.metadata_hash.group_hash`."""
        names, hashes = self._jvm.java.util.ArrayList(), self._jvm.java.util.ArrayList()
        for name, number in topics.items():
            names.add(name)
            hashes.add(str(number))
        return self._java.groupHash(names, hashes)
