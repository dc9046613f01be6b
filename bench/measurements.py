"""The measurements of the benchmark: what each runs and what it claims."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf

from bench.cold_starts import cold_starts
from bench.command_measurements import end_to_end, large, nightly, shape, small_export
from bench.growth import growth
from bench.kernel_measurements import comparison, matrix, native, profile, read_user_log, table
from bench.report import Bound, Item
from bench.soak import soak
from bench.spark_measurements import spark_shapes
from bench.stream_measurements import HERE, SPARK, StreamGoals, stream

_RATIO = "decode + fold, times as fast as Kafka's replay per core"
PER_CORE = Bound(f"{_RATIO} ({{records:,}} records, {{batch}} a batch)", "at least", 16)
PER_CORE_BY_RANGES = [
    Bound(f"{_RATIO}, {{ranges}} ranges, any batch size", "at least", times) for times in (5, 15, 30)
]
PER_CORE_COMPRESSED = Bound(f"{_RATIO}, {{codec}}, 30 ranges, 20 a batch", "at least", 15)
_OVER_CRC = "decode + fold without compression, time over that of reading and checksumming the same bytes"
OVER_CRC_CACHED = Bound(f"{_OVER_CRC}, in the page cache, CPU", "at most", 3)
OVER_CRC_FROM_DISK = Bound(f"{_OVER_CRC}, from the disk, wall", "at most", 3)
SMALL_EXPORT = Bound("{megabytes:.0f} MB from shell to printed result, s", "at most", 20)
USER_LOG = Bound(
    "speed of reading a user log, 1 % of it control records, over a plain CRC pass", "at least", 0.5
)
TABLE = Bound("speed of folding a table over segments of the same records", "at least", 1 / 3)
HISTORY = Bound(
    "an audit of 8 MB without start-up, time after {long:,.0f} over {short:.0f} MB", "at most", 1.2
)
_JUDGED = (
    "`reconstruct` less its start-up, CPU time with every rule over --judge none ({keys:,} share-partitions"
)
RULES = Bound(f"{_JUDGED})", "at most", 1.25)
RULES_OF_MANY = Bound(RULES.subject, "at most", 1.15)
RULES_BROKEN = Bound(f"{_JUDGED}, 5 % of them break a rule)", "at most", 1.6)
OVER_KERNEL = Bound("CPU time without start-up over decode + fold alone ({records:,} records)", "at most", 2)
KAFKA_WALL = Bound("times shorter than Kafka's single-threaded replay ({records:,} records)", "at least", 5)
KAFKA_WALL_IN_SPARK = [Bound(KAFKA_WALL.subject, "at least", times) for times in (5, 10)]
KAFKA_CPU = Bound("CPU time over Kafka's replay ({records:,} records)", "at most", 0.5)
# A process without state holds the interpreter and libraries, about 290 MB, and buffers.
MEMORY = Bound("peak memory of the folding process beyond the live state, MB", "at most", 576)
APART = Bound("{first} and {second}, equal bytes: CPU time of one over the other", "at most", 2)
SCALING = Bound(
    "gain of one hot log partition by {cores} cores over that of independent processes", "at least", 0.8
)


def _stream_goals(
    engine: str, most_keys: float, rate: float, tables: float, metrics: float | None = None
) -> StreamGoals:
    where = "({keys:,} share-partitions, {engine})"
    late = "1,000 records/s, s " + where
    return StreamGoals(
        engine,
        most_keys,
        Bound(f"records/s of a stream that catches up {where}", "at least", rate),
        Bound(f"delay p95 from append to table, {late}", "at most", tables),
        None if metrics is None else Bound(f"delay p95 from append to metrics, {late}", "at most", metrics),
    )


STREAM = (
    _stream_goals(HERE, 20_000, 400_000, 3, 1.5),
    _stream_goals(HERE, inf, 150_000, 10, 3),
    _stream_goals(SPARK, inf, 100_000, 5),
)
FLAT = Bound("memory of a stream, its last tenth over its first", "at most", 1.1)
COLD = Bound(
    "first `reconstruct` of the demo's export over a warm one, kernels shipped, {where}, s", "at most", 2
)
PORTABLE = Bound(
    "CPU time of kernels for every CPU over that of kernels for this one ({batch} a batch)", "at most", 1.1
)
LINEAR = Bound("{clock} time over {name}: distance from a straight line", "at most", 0.1)


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measurement and its claims; `run` is called with the settings and the claims, and yields what to report."""

    name: str
    summary: str
    run: Callable[..., Iterator[Item]]
    claims: tuple[Bound | StreamGoals, ...] = ()
    by_default: bool = False


MEASUREMENTS = (
    Measurement(
        "comparison", "decode + fold, compared with Kafka's replay", comparison, (PER_CORE,), by_default=True
    ),
    Measurement(
        "small-export", "`share-state reconstruct` on 10 MB", small_export, (SMALL_EXPORT,), by_default=True
    ),
    Measurement(
        "user-log", "a 1 GB user log, compared with a CRC pass", read_user_log, (USER_LOG,), by_default=True
    ),
    Measurement("native", "decode + fold with kernels for every CPU and for this one", native, (PORTABLE,)),
    Measurement(
        "nightly",
        "audits after two lengths of history, and rules over everything",
        nightly,
        (HISTORY, RULES, RULES_OF_MANY, RULES_BROKEN),
    ),
    Measurement("table", "the compared log as a Parquet table", table, (TABLE,)),
    Measurement(
        "matrix",
        "decode + fold and Kafka's replay over ranges in flight, batch sizes and codecs",
        matrix,
        (*PER_CORE_BY_RANGES, PER_CORE_COMPRESSED, OVER_CRC_CACHED, OVER_CRC_FROM_DISK),
    ),
    Measurement(
        "end-to-end",
        "`share-state reconstruct` on 2, 20 and 50 M records, and its start-up by step",
        end_to_end,
        (OVER_KERNEL, KAFKA_WALL, KAFKA_CPU, MEMORY, *KAFKA_WALL_IN_SPARK),
    ),
    Measurement(
        "shape",
        "`share-state reconstruct` on equal bytes of few or many keys, log partitions, segments",
        shape,
        (APART, MEMORY, SCALING),
    ),
    Measurement(
        "large", "`share-state` in process on an export that is larger than memory", large, (MEMORY,)
    ),
    Measurement("growth", "`share-state reconstruct` on growing exports, and a chart", growth, (LINEAR,)),
    Measurement(
        "stream", "`share-state stream`: records/s, and the delays of 1,000 records/s", stream, STREAM
    ),
    Measurement(
        "soak",
        "`share-state stream` over thousands of micro-batches: memory, files, descriptors",
        soak,
        (FLAT,),
    ),
    Measurement("spark-shapes", "records/s of each way to use share_state in a Spark session", spark_shapes),
    Measurement(
        "cold",
        "the first `reconstruct` with empty caches, in process and on a cluster, kernels shipped or not",
        cold_starts,
        (COLD,),
    ),
    Measurement("profile", "decode + fold of one log by stage", profile),
)
