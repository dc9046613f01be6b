"""How a key is written: with dots in a file and in `--set`, in capitals in a variable.

The model of the configuration: every key with its range, its default and its meaning.

What the model declares for a key, as JSON schema; it is asked wherever a key is named before it has a value.

Every key of the configuration, for the docs and for guessing which one was meant.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from share_state.fold.options import RELEASES, Limits
from share_state.pipeline.plan import CLAIMS, HISTORY, GroupInput
from share_state.rules.group_context import GroupLimits
from share_state.rules.registry import ERROR, OFF, SEVERITIES, registered
from share_state.sources.discovery import LogPartition

PREFIX, NEST = "SHARE_STATE_", "__"

KeyPath = tuple[str | int, ...]
"""The names from the top of the configuration to a value; an item of a list goes by its number."""


def dotted(path: KeyPath) -> str:
    """A key as a file and `--set` have it: `limits.delivery_count`."""
    return ".".join(map(shown, path))


def variable(path: KeyPath) -> str:
    """The environment variable of a key: `SHARE_STATE_LIMITS__DELIVERY_COUNT`."""
    return PREFIX + NEST.join(map(str, path)).upper()


def shown(name: str | int) -> str:
    """A name as it can stand in a message, which is one line whatever a key is made of."""
    return str(name) if str(name).isprintable() else repr(name)


_SECRET = re.compile(r"(?i)secret|password|token|access[.]?key")
_INT32 = 2**31 - 1
_CENTURY_DAYS = 36_500


def _off_where_false(given: Any) -> Any:
    """A bare `off` is false to YAML 1.1, so programs that write YAML or JSON turn it into that."""
    return OFF if str(given).lower() in (OFF, "false") else given


def _is_registered(code: str) -> str:
    if code not in registered():
        raise ValueError("no such rule")
    return code


FileFormat = Literal["auto", "segments", "table", "dump-log", "console-json"]
Format = Literal[FileFormat, "kafka"]
Column = Literal["key", "value", "topic", "partition", "offset", "timestamp"]
Dialect = Literal["auto", "share_group_state", "control_records"]
Clock = Literal["log", "wall"]
Claims = Literal[CLAIMS]
Severity = Annotated[Literal[(*SEVERITIES, OFF)], BeforeValidator(_off_where_false)]
RuleCode = Annotated[str, AfterValidator(_is_registered)]
PathText = Annotated[str, Field(min_length=1, json_schema_extra={"format": "path"})]
Count = Annotated[int, Field(ge=1, le=_INT32)]
_KAFKA, _GROUPS = Limits(), GroupLimits()


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _nothing_is_the_default(cls, given: Any) -> Any:
        """A key without a value, such as a section whose keys are all commented out, says nothing."""
        if not isinstance(given, dict):
            return given
        # What is no key at all is kept, to be refused.
        return {key: value for key, value in given.items() if value is not None or key not in cls.model_fields}


class Source(_Section):
    """One export of a cluster's logs, or the cluster."""

    path: PathText = Field(description="log folder, .log file, table, text or glob of an export; or kafka://HOST:PORT")
    format: Format = Field("auto", description="what the files are; auto looks at the content")
    dialect: Dialect = Field("auto", description="which records they hold; auto goes by the names of the folders")
    columns: dict[Column, str] = Field({}, description="table: what its columns are called, ours to theirs")
    kafka_properties: PathText | None = Field(
        None, description="kafka://: properties file, as Kafka's own tools take it (`--command-config`)"
    )


class LimitSettings(_Section):
    """The limits that the cluster works under; the defaults are those of share_state.fold.limits.Limits."""

    delivery_count: int = Field(
        _KAFKA.delivery_count, ge=1, le=25, description="`group.share.delivery.count.limit` of the cluster"
    )
    record_locks: Count = Field(
        _KAFKA.record_locks, description="`group.share.partition.max.record.locks` of the cluster"
    )
    updates_per_snapshot: int = Field(
        _KAFKA.updates_per_snapshot,
        ge=0,
        le=_INT32,
        description="`share.coordinator.snapshot.update.records.per.snapshot` of the cluster",
    )
    chain_length: Count = Field(
        _KAFKA.chain_length, description="control records since a checkpoint before a chain is long"
    )
    stall_minutes: float = Field(
        _KAFKA.stall_minutes,
        gt=0,
        allow_inf_nan=False,
        description="minutes that a start offset may stay while later offsets finish",
    )
    pinned_records: Count = Field(
        _KAFKA.pinned_records, description="records that one share-partition may keep from being cleaned, unmentioned"
    )
    writer_version: Literal[RELEASES] | None = Field(
        _KAFKA.writer_version, description="Kafka release that wrote the log; by default inferred from it"
    )

    def to_limits(self) -> Limits:
        """The limits as the fold and the rules take them."""
        return Limits(**self.model_dump())


class GroupSettings(_Section):
    """The group side: exports of `__consumer_offsets`, and what share groups are held against."""

    paths: list[PathText] | None = Field(
        None,
        min_length=1,
        description="exports of `__consumer_offsets`; by default those in `sources` or beside their logs",
    )
    format: FileFormat = Field("auto", description="what `paths` are; auto looks at the content")
    columns: dict[Column, str] = Field({}, description="table in `paths`: what its columns are called, ours to theirs")
    partitions: Count | None = Field(
        None, description="partitions of `__consumer_offsets`; by default as many as the input shows"
    )
    claims: Claims = Field(
        HISTORY, description="which records of a classic consumer group are judged: all that are left, or the latest"
    )
    members: Count = Field(_GROUPS.members, description="`group.share.max.size` of the cluster")
    retry_seconds: Count = Field(
        _GROUPS.retry_ms // 1000, description="seconds that the state of a share-partition may be in the making"
    )
    delete_grace_seconds: Count = Field(
        _GROUPS.delete_grace_ms // 1000, description="seconds that the state of a deleted topic may still be there"
    )

    def to_input(self, logs: tuple[LogPartition, ...], counted: int | None = None) -> GroupInput | None:
        """The group side of an audit, None where there are no logs of it.

        Args:
            logs: partitions of `__consumer_offsets`.
            counted: how many the topic has, where a cluster told; what is configured wins.
        """
        limits = GroupLimits(self.members, self.retry_seconds * 1000, self.delete_grace_seconds * 1000)
        return GroupInput(logs, self.partitions or counted, self.claims, limits) if logs else None


class ReportSettings(_Section):
    """Files that the audit writes beside the tables."""

    html: PathText | None = Field(None, description="page for people; none by default")
    prometheus: PathText | None = Field(None, description="metrics for the textfile collector; none by default")


class RetentionSettings(_Section):
    """How long history stays in the warehouse."""

    history_days: int = Field(90, ge=1, le=_CENTURY_DAYS, description="days that the history of runs is kept")


class SparkSettings(_Section):
    """The Spark session of the audit."""

    master: str | None = Field(
        None, min_length=1, description="Spark master; where none is named, `local[*]` if there is enough to read"
    )
    conf: dict[str, str] = Field({}, description="Spark settings, name to value")


class AuditSettings(_Section):
    """What the nightly audit of one cluster reads, writes, checks and reports.

    Attributes are the keys of the file; docs/audit-configuration.md lists them. Made by `load_settings` or
    `settings_for`, which know where a value came from when it has to be refused.
    """

    cluster: str = Field("", description="name of the cluster in reports and metrics")
    sources: list[Source] = Field(min_length=1, description="exports that the audit takes in, as one")
    warehouse: PathText = Field(description="folder of the Delta tables")
    state_partitions: Count | None = Field(
        None, description="partitions of `__share_group_state`; by default as many as the input shows"
    )
    topics: PathText | None = Field(None, description="JSON file: topic id to name, partitions, end offsets")
    limits: LimitSettings = Field(default_factory=LimitSettings)
    groups: GroupSettings = Field(default_factory=GroupSettings)
    clock: Clock = Field(
        "log", description='what "for so long" is counted to: the newest record of the input, or the time of the audit'
    )
    rules: dict[RuleCode, Severity] = Field({}, description="severity of a rule in place of its own")
    fail_on: Severity = Field(ERROR, description="exit with 1 when something of this severity or above is found")
    report: ReportSettings = Field(default_factory=ReportSettings)
    retention: RetentionSettings = Field(default_factory=RetentionSettings)
    spark: SparkSettings = Field(default_factory=SparkSettings)

    def describe(self) -> dict[str, str]:
        """What was configured, for the row of a run.

        Returns:
            Dotted key -> value as text: whatever differs from its default, which every path does. A Spark setting whose
            name speaks of a secret is there without its value.
        """
        told = {}
        for path, value in _configured(self, ()):
            hidden = path[:2] == ("spark", "conf") and _SECRET.search(str(path[2]))
            told[dotted(path)] = "(hidden)" if hidden else str(value)
        return told


def _configured(section: _Section, above: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """The values below a section that differ from their defaults; every entry of a list or a map does."""
    for name, field in type(section).model_fields.items():
        path, value = (*above, name), getattr(section, name)
        if isinstance(value, _Section):
            yield from _configured(value, path)
        elif isinstance(value, list):
            for number, item in enumerate(value):
                inner = (*path, number)
                yield from _configured(item, inner) if isinstance(item, _Section) else [(inner, item)]
        elif isinstance(value, dict):
            yield from (((*path, key), one) for key, one in value.items())
        elif value is not None and value != field.default:
            yield path, value


@cache
def whole() -> dict[str, Any]:
    """The JSON schema of the model, references written out and `or null` left out."""
    schema = AuditSettings.model_json_schema()

    def written_out(part: dict[str, Any]) -> dict[str, Any]:
        if "$ref" in part:
            part = {**schema["$defs"][part["$ref"].rpartition("/")[2]], **part}
        if "anyOf" in part:
            part = {**part["anyOf"][0], **part}
        inner = {name: written_out(part[name]) for name in ("items", "additionalProperties") if part.get(name)}
        if "properties" in part:
            inner["properties"] = {name: written_out(one) for name, one in part["properties"].items()}
        return {**part, **inner}

    return written_out(schema)


def below(declared: Mapping[str, Any], name: str | int) -> dict[str, Any] | None:
    """What a section declares for a key, a list for an item or a map for a name; None where there is no such key."""
    if "properties" in declared:
        return declared["properties"].get(name)
    if "items" in declared:
        return declared["items"] if re.fullmatch(r"\d{1,4}", str(name)) else None
    return declared.get("additionalProperties")


def declared_at(path: KeyPath) -> dict[str, Any] | None:
    """What the model declares for a key; None where there is no such key."""
    declared: dict[str, Any] | None = whole()
    for name in path:
        declared = declared and below(declared, name)
    return declared


def takes(declared: Mapping[str, Any]) -> str:
    """What may be given for a key, in words."""
    match declared:
        case {"enum": [*most, last]}:
            return f"{', '.join(most)} or {last}"
        case {"type": "integer", "minimum": least, "maximum": most}:
            return f"a whole number from {least} to {most}"
        case {"type": "number", "exclusiveMinimum": bound}:
            return f"a number over {bound:g}"
        case {"properties": known}:
            return f"a map of {', '.join(known)}"
        case {"items": item}:
            return f"a list of one or more: {takes(item)}"
        case {"additionalProperties": dict(value)}:
            return f"a map of names to {takes(value)}"
        case {"format": "path"}:
            return "a path"
    return "text"


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the configuration.

    Attributes:
        name: dotted, N for the number of a list item.
        takes: what may be given, in words.
        default: as YAML writes it, in backticks; "required" where there is none.
        variable: the environment variable that overrides it.
        meaning: one line.
    """

    name: str
    takes: str
    default: str
    variable: str
    meaning: str


def keys() -> Iterator[Key]:
    """Every key in the order of the model; a list before the keys of its items."""
    yield from _keys(whole(), ())


def _keys(section: Mapping[str, Any], above: KeyPath) -> Iterator[Key]:
    for name, one in section["properties"].items():
        path = (*above, name)
        if "properties" in one:
            yield from _keys(one, path)
            continue
        default = f"`{_plain_yaml(one['default'])}`" if "default" in one else "required"
        yield Key(dotted(path), takes(one), default, variable(path), one["description"])
        if "properties" in one.get("items", {}):
            yield from _keys(one["items"], (*path, "N"))


def _plain_yaml(default: Any) -> str:
    return yaml.safe_dump(default, default_flow_style=True).splitlines()[0]
