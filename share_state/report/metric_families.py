"""Metric families as text: one at a time, and those of many series by Arrow, column by column.

prometheus_client decides on names, help and types. Of a family with thousands of series, it would make an object and
a line of text at a time, which is a third of what a report costs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from share_state.kafka.buffers import column_bytes

Encode = Callable[[Collector], bytes]
"""Writes the text of a registry, such as `generate_latest`."""

_ESCAPED = {"\\": r"\\", "\n": r"\n", '"': r"\""}
"""In the value of a label. Source: Prometheus, Exposition formats."""


@dataclass(frozen=True, slots=True)
class Series:
    """Series of a metric.

    Attributes:
        labels: name -> values, one per series.
        values: numbers; null for a series that is absent.
    """

    labels: Mapping[str, pa.Array]
    values: pa.Array


@dataclass(frozen=True, slots=True)
class ColumnFamily:
    """A gauge of many series.

    Attributes:
        name, text: of the metric.
        parts: its series.
        common: labels that all series have.
    """

    name: str
    text: str
    parts: Sequence[Series]
    common: Mapping[str, str] = field(default_factory=dict)

    def metric(self) -> GaugeMetricFamily:
        """The family with an object per series."""
        family = GaugeMetricFamily(self.name, self.text)
        for part in self.parts:
            values = part.labels.values()
            rows = zip(*(column.to_pylist() for column in values), strict=True) if values else [()]
            labels = (dict(zip(part.labels, row, strict=True)) for row in rows)
            family.samples += [
                Sample(self.name, {**self.common, **of}, value)
                for of, value in zip(labels, part.values.to_pylist(), strict=True)
                if value is not None
            ]
        return family

    def lines(self, encode: Encode) -> bytes:
        """The lines of the family, as `family_text` of `metric` but for the form of numbers."""
        lines = map(self._lines, self.parts)
        return b"".join([family_text(encode, GaugeMetricFamily(self.name, self.text)), *lines])

    def _lines(self, part: Series) -> bytes:
        named = {**{name: pa.scalar(value) for name, value in self.common.items()}, **part.labels}
        begin, end = ("{", "} ") if named else ("", " ")
        pieces = list[pa.Array | pa.Scalar | str]()
        for name, given in sorted(named.items()):
            pieces += [f'{"," if pieces else ""}{name}="', _escaped(given), '"']
        values = part.values.cast(pa.float64()).cast(pa.string())
        # Other families have whole numbers as 1.0.
        values = pc.replace_substring_regex(values, r"^(-?[0-9]+)$", r"\1.0")
        whole = pc.call_function(
            "binary_join_element_wise", [pa.scalar(self.name + begin), *map(_datum, pieces), pa.scalar(end), values,
                                         pa.scalar("\n"), pa.scalar("")]
        )  # fmt: skip
        lines = whole.drop_null()
        text = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines), "")[0]
        return text.as_py().encode()


def _escaped(values: pa.Array | pa.Scalar) -> pa.Array | pa.Scalar:
    given = values.as_py().encode() if isinstance(values, pa.Scalar) else column_bytes(values)[0].tobytes()
    for character, escaped in _ESCAPED.items():
        # To look for what few values have takes a tenth of the time.
        if character.encode() in given:
            values = pc.replace_substring(values, character, escaped)
    return values


def _datum(piece: pa.Array | pa.Scalar | str) -> pa.Array | pa.Scalar:
    return pa.scalar(piece) if isinstance(piece, str) else piece


class _OneFamily(Collector):
    """A registry of one metric."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def family_text(encode: Encode, family: Metric) -> bytes:
    """The lines of a metric; the line that ends a text of OpenMetrics is left out."""
    return encode(_OneFamily(family)).removesuffix(encode(CollectorRegistry()))
