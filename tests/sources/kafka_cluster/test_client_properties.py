"""Addresses and properties files: read as Kafka's own tools read them, and their values never shown."""

import importlib
import sys
from pathlib import Path

import pytest

from share_state.errors import InputError, SetupError
from share_state.sources.input_detection import find_cluster_address
from share_state.sources.kafka_client import (
    ClientProperties,
    bootstrap_servers,
    read_client_properties,
)
from share_state.sources.kafka_cluster import Cluster


def written(folder: Path, text: str) -> ClientProperties:
    file = folder / "client.properties"
    file.write_text(text, encoding="utf-8")
    return read_client_properties(str(file))


@pytest.mark.parametrize(
    ("address", "brokers"),
    [
        ("kafka://localhost:9092", "localhost:9092"),
        ("kafka://a.example:1,b.example:65535/", "a.example:1,b.example:65535"),
        ("kafka://[::1]:9092", "[::1]:9092"),
    ],
)
def test_an_address_names_brokers(address: str, brokers: str) -> None:
    assert bootstrap_servers(address) == brokers


@pytest.mark.parametrize(
    "address",
    [
        "kafka://",
        "kafka://host",
        "kafka://host:0",
        "kafka://host:70000",
        "kafka://a:1,,b:2",
        "kafka://a:1/topic",
        "a:1",
    ],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(InputError, match=r"not the address of a cluster; give kafka://HOST:PORT"):
        bootstrap_servers(address)


def test_a_password_in_an_address_is_refused_and_not_shown() -> None:
    with pytest.raises(InputError, match="properties file") as error:
        bootstrap_servers("kafka://me:s3cret@host:9092")
    assert "s3cret" not in str(error.value)


def test_a_missing_client_library_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    for name in ("kafka_cluster", "kafka_admin"):
        monkeypatch.delitem(sys.modules, f"share_state.sources.{name}", raising=False)
        with pytest.raises(SetupError, match=r"run `pip install 'share-state\[kafka\]'`"):
            importlib.import_module(f"share_state.sources.{name}")


def test_a_cluster_is_read_alone() -> None:
    assert find_cluster_address(["/exports"]) is None
    assert find_cluster_address(["kafka://a:1"]) == "kafka://a:1"
    with pytest.raises(InputError, match="a cluster is read alone"):
        find_cluster_address(["/exports", "kafka://a:1"])
    with pytest.raises(InputError, match="a cluster is not read as segments"):
        find_cluster_address(["kafka://a:1"], "segments")
    with pytest.raises(InputError, match="/exports: not the address of a cluster"):
        find_cluster_address(["/exports"], "kafka")


def test_a_file_is_read_as_java_reads_it(tmp_path: Path) -> None:
    text = "# comment\n! another\n\n a = 1 \nb:2\nc 3=4\nlong=one,\\\n   two\nescaped\\ name=t\\u00e4b\\tq\\\\\n"
    assert written(tmp_path, text.replace("c 3=4\n", "")).settings == {
        "a": "1 ", "b": "2", "long": "one,two", "escaped name": "täb\tq\\"
    }  # fmt: skip
    with pytest.raises(InputError, match="line 6 is not NAME=VALUE") as error:
        written(tmp_path, text)
    assert "3=4" not in str(error.value)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nope: cannot be read \(No such file"):
        read_client_properties(str(tmp_path / "nope"))
    assert read_client_properties(None).for_librdkafka() == {}


def test_kafkas_own_names_become_those_of_the_reader(tmp_path: Path) -> None:
    login = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="me" password="a\\\\"b;c";'
    given = written(
        tmp_path,
        "bootstrap.servers=ignored:1\nsecurity.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        f"sasl.jaas.config={login}\nssl.truststore.type=PEM\nssl.truststore.location=/ca.pem\n"
        "ssl.keystore.type=PKCS12\nssl.keystore.location=/me.p12\nssl.keystore.password=s3cret\n"
        "ssl.endpoint.identification.algorithm=\n",
    )
    assert given.for_librdkafka() == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "me",
        "sasl.password": 'a"b;c',
        "ssl.ca.location": "/ca.pem",
        "ssl.keystore.location": "/me.p12",
        "ssl.keystore.password": "s3cret",
        "ssl.endpoint.identification.algorithm": "none",
    }
    assert "s3cret" not in repr(given)


def test_certificates_may_stand_in_the_file(tmp_path: Path) -> None:
    given = written(
        tmp_path,
        "ssl.keystore.type=PEM\nssl.keystore.certificate.chain=CHAIN\nssl.keystore.key=KEY\n"
        "ssl.truststore.type=PEM\nssl.truststore.certificates=CA\nssl.key.password=p\n",
    )
    assert given.for_librdkafka() == {
        "ssl.certificate.pem": "CHAIN", "ssl.key.pem": "KEY", "ssl.ca.pem": "CA", "ssl.key.password": "p"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "ssl.truststore.location=/ca.jks\nssl.truststore.password=s3cret",
            "a JKS store is not supported; give one of type PEM",
        ),
        (
            "sasl.jaas.config=com.sun.security.auth.module.Krb5LoginModule required s3cret;",
            "sasl.jaas.config: only Plain",
        ),
        ('sasl.jaas.config=x.PlainLoginModule required password="s3cret";', "it has no username and password"),
        ("no.such.setting=s3cret", 'No such configuration property: "no.such.setting"'),
        ("security.protocol=s3cret", "security.protocol: not a valid value"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named_without_its_value(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        Cluster("kafka://127.0.0.1:1", written(tmp_path, text))
    assert said in str(error.value)
    assert str(error.value).startswith(str(tmp_path))
    assert "s3cret" not in str(error.value)
