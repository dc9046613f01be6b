"""The list of Kafka releases: the oldest first, by number."""

from dataclasses import replace

from share_state.kafka.releases import LATEST, RELEASES


def test_releases_are_in_order_and_compared_by_number():
    names = [*RELEASES]
    assert names[-1] == LATEST.name
    for at, release in enumerate(RELEASES.values()):
        assert [release.is_before(name) for name in names] == [at < other for other in range(len(names))]
    assert not replace(LATEST, name="4.10").is_before("4.9")
