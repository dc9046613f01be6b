"""The text of a column of series says what prometheus_client writes of the same series."""

from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from share_state.report.metric_families import ColumnFamily, Encode, Series, family_text
from tests.profiles import SLOW

_TEXTS = st.text(st.sampled_from('ab\\n"\n\u00e9{},= '), max_size=6)
_VALUES = st.none() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False)


def _samples(text: bytes, parse: Callable[[str], object]) -> list[Sample]:
    (family,) = parse(text.decode())  # type: ignore[misc]
    return family.samples


@pytest.mark.parametrize(
    ("encode", "parse"),
    [
        (generate_latest, text_string_to_metric_families),
        (
            choose_encoder("application/openmetrics-text; version=1.0.0")[0],
            lambda text: openmetrics.text_string_to_metric_families(text + "# EOF\n"),
        ),
    ],
    ids=["text", "OpenMetrics"],
)
@SLOW
@given(
    rows=st.lists(st.tuples(_TEXTS, _TEXTS, _VALUES), min_size=1, max_size=8, unique_by=lambda row: row[:2]),
    common=st.dictionaries(st.just("cluster"), _TEXTS),
)
def test_columns_as_text_are_the_samples(
    encode: Encode,
    parse: Callable[[str], object],
    rows: list[tuple[str, str, float | None]],
    common: dict[str, str],
):
    groups, topics, values = (list(column) for column in zip(*rows, strict=True))
    labels = {"group_id": pa.array(groups, pa.string()), "topic_name": pa.array(topics, pa.string())}
    is_whole = all(value is None or isinstance(value, int) for value in values)
    part = Series(labels, pa.array(values, pa.int64() if is_whole else pa.float64()))
    family = ColumnFamily("share_state_group_topic_lag", "Records behind.", [part], common)
    samples = _samples(family.lines(encode), parse)
    assert samples == _samples(family_text(encode, family.metric()), parse)
    assert len(samples) == sum(value is not None for value in values)
