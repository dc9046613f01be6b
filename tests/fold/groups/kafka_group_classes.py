"""Kafka's own group coordinator and sticky assignor inside the Spark JVM; see tests/kafka_classes.py for how."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError

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
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordSerde;
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
    private static final Uuid TOPIC = new Uuid(0L, 42L);
    private Map assigned = new HashMap();

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

    public String assign(List names, int partitions) throws Exception {
        final int count = partitions;
        Set topics = new HashSet();
        topics.add(TOPIC);
        Map members = new HashMap();
        for (int i = 0; i < names.size(); i++) {
            Assignment before = (Assignment) assigned.get(names.get(i));
            members.put(names.get(i), new MemberSubscriptionAndAssignmentImpl(
                Optional.empty(), Optional.empty(), topics, before == null ? Assignment.EMPTY : before));
        }
        SubscribedTopicDescriber describer = new SubscribedTopicDescriber() {
            public int numPartitions(Uuid topic) { return count; }
            public Set racksForPartition(Uuid topic, int partition) { return new HashSet(); }
        };
        GroupAssignment made = new SimpleAssignor().assign(
            new GroupSpecImpl(members, SubscriptionType.HOMOGENEOUS, new HashMap()), describer);
        assigned = new HashMap();
        Map answer = new HashMap();
        for (Iterator all = made.members().entrySet().iterator(); all.hasNext();) {
            Map.Entry one = (Map.Entry) all.next();
            Map of = ((MemberAssignment) one.getValue()).partitions();
            assigned.put(one.getKey(), new Assignment(of));
            answer.put(one.getKey(), of.containsKey(TOPIC) ? new ArrayList((Set) of.get(TOPIC)) : new ArrayList());
        }
        return new ObjectMapper().writeValueAsString(answer);
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

    def assign(self, members: Sequence[str], partitions: int) -> dict[str, list[int]]:
        """What the share assignor gives to members that want one topic, as a change of what it gave last time."""
        names = self._jvm.java.util.ArrayList()
        for member in members:
            names.add(member)
        return json.loads(self._java.assign(names, partitions))
