"""Kafka's own MetadataDelta and MetadataImage inside the Spark JVM, over encoded metadata records."""

import base64
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

# Written for Janino, which knows neither generics nor lambdas.
_JAVA = """
import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.image.ConfigurationImage;
import org.apache.kafka.image.MetadataDelta;
import org.apache.kafka.image.MetadataImage;
import org.apache.kafka.image.MetadataProvenance;
import org.apache.kafka.image.TopicImage;
import org.apache.kafka.metadata.BrokerRegistration;
import org.apache.kafka.metadata.MetadataRecordSerde;
import org.apache.kafka.metadata.PartitionRegistration;
import org.apache.kafka.server.common.ApiMessageAndVersion;

public class KafkaMetadata {
    public String fold(String records) throws Exception {
        MetadataImage image = MetadataImage.EMPTY;
        String[] texts = records.split(",");
        for (int i = 0; i < texts.length; i++) {
            byte[] value = Base64.getDecoder().decode(texts[i]);
            ByteBufferAccessor bytes = new ByteBufferAccessor(ByteBuffer.wrap(value));
            Object read = MetadataRecordSerde.INSTANCE.read(bytes, value.length);
            MetadataDelta delta = new MetadataDelta.Builder().setImage(image).build();
            delta.replay(((ApiMessageAndVersion) read).message());
            image = delta.apply(MetadataProvenance.EMPTY);
        }
        Map found = new TreeMap();
        Map topics = new TreeMap();
        for (Iterator i = image.topics().topicsById().values().iterator(); i.hasNext();) {
            TopicImage topic = (TopicImage) i.next();
            Map partitions = new TreeMap();
            for (Iterator j = topic.partitions().entrySet().iterator(); j.hasNext();) {
                Map.Entry entry = (Map.Entry) j.next();
                PartitionRegistration partition = (PartitionRegistration) entry.getValue();
                List leader = new ArrayList();
                leader.add(Integer.valueOf(partition.leader));
                leader.add(Integer.valueOf(partition.leaderEpoch));
                leader.add(Integer.valueOf(partition.isr.length));
                partitions.put(entry.getKey().toString(), leader);
            }
            List described = new ArrayList();
            described.add(topic.name());
            described.add(partitions);
            topics.put(topic.id().toString(), described);
        }
        found.put("topics", topics);
        Map configs = new TreeMap();
        for (Iterator i = image.configs().resourceData().entrySet().iterator(); i.hasNext();) {
            Map.Entry entry = (Map.Entry) i.next();
            ConfigResource resource = (ConfigResource) entry.getKey();
            Map data = ((ConfigurationImage) entry.getValue()).data();
            if (!data.isEmpty()) {
                configs.put(resource.type().id() + " " + resource.name(), data);
            }
        }
        found.put("configs", configs);
        found.put("features", image.features().finalizedVersions());
        Map brokers = new TreeMap();
        for (Iterator i = image.cluster().brokers().values().iterator(); i.hasNext();) {
            BrokerRegistration broker = (BrokerRegistration) i.next();
            brokers.put(String.valueOf(broker.id()), Boolean.valueOf(broker.fenced()));
        }
        found.put("brokers", brokers);
        return new ObjectMapper().writeValueAsString(found);
    }
}
"""


def fold_in_kafka(jvm: Any, jars: Sequence[Path], values: Sequence[bytes]) -> dict[str, Any]:
    """The image that Kafka makes of metadata records: topics, configs, features and brokers.

    A delta is applied after each record: one delta keeps configs of a topic that is created and removed in it.

    Args:
        jvm: of a Spark session.
        jars: of one Kafka release.
        values: the records' values, frames included.
    """
    return json.loads(_folder(jvm, tuple(jars)).fold(",".join(base64.b64encode(value).decode() for value in values)))


@cache
def _folder(jvm: Any, jars: tuple[Path, ...]) -> Any:
    urls = jvm.java.lang.reflect.Array.newInstance(jvm.java.lang.Class.forName("java.net.URL"), len(jars))
    for place, jar in enumerate(jars):
        urls[place] = jvm.java.io.File(str(jar)).toURI().toURL()
    loader = jvm.java.net.URLClassLoader(urls, jvm.java.lang.ClassLoader.getPlatformClassLoader())
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.cook(_JAVA)
    made = compiler.getClassLoader().loadClass("KafkaMetadata").getConstructors()[0]
    return made.newInstance(jvm.java.util.ArrayList().toArray())
