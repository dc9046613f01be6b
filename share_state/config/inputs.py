"""`InputSpec`: what to read and how to fold it. Options, YAML keys and Python arguments all build one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    ValidationError,
    model_validator,
)

from share_state.errors import InputError, ShareStateError
from share_state.fold.limits import Limits
from share_state.fold.options import STRICT
from share_state.kafka.primitives import LARGEST_INT64
from share_state.kafka.releases import RELEASES
from share_state.rules.group_context import GroupLimits
from share_state.rules.registry import OFF, registered
from share_state.sources.as_of import TIME_FORMS, LogTime, NotATimeError, parse_time
from share_state.sources.object_stores import normalize_address
from share_state.sources.topics import Topics

HISTORY, LATEST = "history", "latest"
"""Which records of classic consumer groups are judged: all in the log, or the latest of each group."""

JUDGE_ALL, JUDGE_STATE, JUDGE_NONE = "all", "state", "none"
"""Which rules apply: all rules, all except those over single records of `__share_group_state`, or none."""

INT32_MAX = 2**31 - 1


def _off_if_false(value: Any) -> Any:
    """Accept false for `off`: programs that write YAML or JSON turn a bare `off` of YAML 1.1 into false."""
    return OFF if str(value).lower() in (OFF, "false") else value


def _is_registered(code: str) -> str:
    if code not in registered():
        raise ValueError("no such rule")
    return code


def _to_time(value: Any) -> int | LogTime:
    if not isinstance(value, str | datetime):
        raise ValueError("neither a datetime nor text")
    return parse_time(value)


def _to_address(path: str) -> str:
    address = normalize_address(path)
    if not address or "\0" in address:
        raise ValueError("no path")
    return address


FileFormat = Literal["auto", "segments", "table", "dump-log", "console-json"]
Format = Literal[FileFormat, "kafka"]
Column = Literal["key", "value", "topic", "partition", "offset", "timestamp"]
Dialect = Literal["auto", "share_group_state", "control_records"]
Claims = Literal["history", "latest"]
Mode = Literal["strict", "best-effort"]
Judge = Literal["all", "state", "none"]
if TYPE_CHECKING:
    Release = str
else:
    Release = Literal[tuple(RELEASES)]
Severity = Annotated[Literal["error", "warning", "info", "off"], BeforeValidator(_off_if_false)]
RuleCode = Annotated[str, AfterValidator(_is_registered)]
PathText = Annotated[
    str,
    Field(min_length=1, json_schema_extra={"format": "path"}),
    AfterValidator(_to_address),
]
Count = Annotated[int, Field(ge=1, le=INT32_MAX)]
LogOffset = Annotated[int, Field(ge=0, le=LARGEST_INT64, strict=True)]
_KAFKA, _GROUPS = Limits(), GroupLimits()


class Section(BaseModel):
    """A section of the configuration: unknown keys are refused, and a key without a value keeps its default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, values: Any) -> Any:
        """A section whose keys are all commented out is null in YAML."""
        if not isinstance(values, dict):
            return values
        # Unknown keys are kept, so that pydantic refuses them.
        return {key: value for key, value in values.items() if value is not None or key not in cls.model_fields}


class Source(Section):
    """One export of a cluster's logs, or the cluster."""

    path: PathText = Field(description="log folder, .log file, table, text or glob of an export; or kafka://HOST:PORT")
    format: Format = Field(default="auto", description="format of the files; auto looks at the content")
    dialect: Dialect = Field(
        default="auto", description="which records they hold; auto detects it from the folder names"
    )
    columns: dict[Column, str] = Field(default={}, description="for a table: our column name to its column name")
    kafka_properties: PathText | None = Field(
        default=None, description="for kafka://: properties file that Kafka's own tools take (`--command-config`)"
    )


class GroupConfig(Section):
    """The limits that a share group sets for itself; the cluster's limits apply to keys that are left out."""

    delivery_count: int | None = Field(
        default=None, ge=1, le=25, description="`share.delivery.count.limit` of the group"
    )
    record_locks: Count | None = Field(default=None, description="`share.partition.max.record.locks` of the group")


class LimitSettings(Section):
    """The limits of the cluster; share_state.fold.limits.Limits has the defaults."""

    delivery_count: int = Field(
        default=_KAFKA.delivery_count, ge=1, le=25, description="`group.share.delivery.count.limit` of the cluster"
    )
    record_locks: Count = Field(
        default=_KAFKA.record_locks, description="`group.share.partition.max.record.locks` of the cluster"
    )
    updates_per_snapshot: int = Field(
        default=_KAFKA.updates_per_snapshot,
        ge=0,
        le=INT32_MAX,
        description="`share.coordinator.snapshot.update.records.per.snapshot` of the cluster",
    )
    chain_length: Count = Field(
        default=_KAFKA.chain_length, description="control records since a checkpoint above which a chain counts as long"
    )
    stall_minutes: float = Field(
        default=_KAFKA.stall_minutes,
        gt=0,
        allow_inf_nan=False,
        description="minutes that a start offset may stay unchanged while later offsets finish",
    )
    pinned_records: Count = Field(
        default=_KAFKA.pinned_records,
        description="records that one share-partition may keep from deletion before it is reported",
    )
    writer_version: Release | None = Field(
        default=None, description="Kafka release that wrote the log; default: inferred from the log"
    )
    archiving_seconds: float = Field(
        default=_KAFKA.archiving_seconds,
        ge=0,
        allow_inf_nan=False,
        description="seconds that an offset may stay in ARCHIVING before it is reported",
    )
    giving_up_minutes: float = Field(
        default=_KAFKA.giving_up_minutes,
        gt=0,
        allow_inf_nan=False,
        description="minutes for which a share-partition may only give up records and acknowledge none",
    )
    poison_ratio: float = Field(
        default=_KAFKA.poison_ratio,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="share of the records finished since the last audit that may be given up without a finding",
    )
    export_age: float = Field(
        default=_KAFKA.export_age,
        ge=0,
        allow_inf_nan=False,
        description="hours that the newest record of an export may be old before an audit reports it; 0 for any age",
    )
    groups: dict[str, GroupConfig] = Field(
        default={}, description="share groups with limits of their own; those of a live cluster are read from it"
    )
    batch_bytes: Count = Field(
        default=_KAFKA.batch_bytes,
        description="bytes of a decompressed record batch above which it is malformed; far above `message.max.bytes`",
    )

    def to_limits(self) -> Limits:
        """Convert to the limits that the fold and the rules take."""
        group_limits = {name: config.model_dump(exclude_none=True) for name, config in self.groups.items()}
        return Limits(**self.model_dump(exclude={"groups"}), groups=group_limits)


class GroupSettings(Section):
    """Exports of `__consumer_offsets`, and limits for checks of groups."""

    paths: list[PathText] | None = Field(
        default=None,
        min_length=1,
        description="exports of `__consumer_offsets`; default: those in `sources` or next to their logs",
    )
    format: FileFormat = Field(default="auto", description="format of `paths`; auto looks at the content")
    columns: dict[Column, str] = Field(
        default={}, description="for a table in `paths`: our column name to its column name"
    )
    partitions: Count | None = Field(
        default=None, description="number of partitions of `__consumer_offsets`; default: as many as the input shows"
    )
    claims: Claims = Field(
        default=HISTORY,
        description="which records of a classic consumer group are checked: all remaining, or the latest",
    )
    members: Count = Field(default=_GROUPS.members, description="`group.share.max.size` of the cluster")
    retry_seconds: Count = Field(
        default=_GROUPS.retry_ms // 1000, description="seconds that a share-partition may be initializing"
    )
    delete_grace_seconds: Count = Field(
        default=_GROUPS.delete_grace_ms // 1000, description="seconds that the state of a deleted topic may remain"
    )

    def to_limits(self) -> GroupLimits:
        """Convert to the limits that the rules over groups take."""
        return GroupLimits(self.members, self.retry_seconds * 1000, self.delete_grace_seconds * 1000)


class ControlSettings(Section):
    """How control records of the KIP-932 draft are folded, and which groups hold back the cutoff."""

    mode: Mode = Field(default=STRICT, description="how a broken chain of deltas is folded")
    subscriptions: PathText | None = Field(
        default=None, description="JSON file: topic to the groups that subscribe to it; default: every group of the log"
    )
    ignore_uncheckpointed: bool = Field(
        default=False, description="whether the cutoff ignores groups without a checkpoint"
    )
    index: PathText | None = Field(
        default=None, description="folder of share snapshot files, which are checked and written again"
    )


class InputSpec(Section):
    """What to read, up to which record, and how to fold it.

    Attributes:
        sources: exports; those of the same format and dialect are read together.
        frame: a Spark DataFrame of records in place of `sources`.
        columns: column names of `frame`.
        as_of_offsets: log partition (name or number) -> first offset left out.
        as_of_time: ms, or a time that depends on the logs; records with a later timestamp are left out. Accepts a
            datetime, or a text in one of TIME_FORMS.
        topics: names and end offsets, or the path of a JSON file of them.
        state_partitions: number of partitions of `__share_group_state`; None to infer it.
        groups: exports of `__consumer_offsets`; None to read no groups.
        dead_letters: exports of dead-letter topics, or the address of a cluster.
        dead_letters_copied_last: whether they were copied after the state logs.
        group_frame: a Spark DataFrame of group records in place of `groups.paths`.
        names_only: whether groups are read only for the names of topics; then a log of theirs that cannot be
            read is only noted.
        rules: rule -> severity in place of its own.
        judge: which rules apply: JUDGE_ALL, JUDGE_STATE or JUDGE_NONE.
        limits: limits of the cluster.
        control_records: how control records of the KIP-932 draft are folded.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    sources: list[Source] = []
    frame: Any = None
    columns: dict[Column, str] = {}
    as_of_offsets: dict[str, LogOffset] = {}
    as_of_time: Annotated[int | InstanceOf[LogTime] | None, BeforeValidator(_to_time)] = None
    topics: InstanceOf[Topics] | PathText | None = None
    state_partitions: Count | None = None
    groups: GroupSettings | None = None
    dead_letters: list[PathText] = []
    dead_letters_copied_last: bool = False
    group_frame: Any = None
    names_only: bool = False
    rules: dict[RuleCode, Severity] = {}
    judge: Judge = "state"
    limits: LimitSettings = LimitSettings()
    control_records: ControlSettings = ControlSettings()

    @property
    def has_as_of(self) -> bool:
        """Whether only the records up to a point are read."""
        return bool(self.as_of_offsets) or self.as_of_time is not None


@dataclass(frozen=True, slots=True)
class FieldNames:
    """How messages name the fields of InputSpec: as the caller wrote them.

    Attributes:
        texts: field -> format string over the `key` and `value` that the caller wrote.
        expected: field -> description of valid values, for fields that are not a choice.
    """

    texts: dict[str, str]
    expected: Mapping[str, str] = field(default_factory=dict)

    def name(self, field: str, key: object = "", value: object = "") -> str:
        """The field with the key and value that the caller wrote."""
        return self.texts.get(field, field).format(key=key, value=value)

    def label(self, field: str) -> str:
        """The field without key and value."""
        return self.texts.get(field, field).partition("{")[0].rstrip(" =")


OPTIONS = FieldNames(
    {
        "format": "--format {value}",
        "dialect": "--dialect {value}",
        "columns": "--column {key}={value}",
        "as_of_offsets": "--as-of-offset {key}={value}",
        "as_of_time": "--as-of-time {value}",
        "rules": "--rule {key}={value}",
        "judge": "--judge {value}",
        "mode": "--mode {value}",
        "state_partitions": "--state-partitions {value}",
        "groups.partitions": "--group-partitions {value}",
    },
    {
        "as_of_offsets": "a partition and an offset, as in 3=12000",
        "as_of_time": f"a time as in {TIME_FORMS}",
    },
)
LATER_OPTIONS = FieldNames(
    OPTIONS.texts | {"as_of_offsets": "--and-as-of-offset {key}={value}", "as_of_time": "--and-as-of-time {value}"},
    OPTIONS.expected,
)
"""The options of the later of two points."""

ARGUMENTS = FieldNames(
    {
        "format": "format={value!r}",
        "dialect": "dialect={value!r}",
        "columns": "columns={{{key!r}: {value!r}}}",
        "as_of_offsets": "as_of={{{key}: {value!r}}}",
        "as_of_time": "as_of={value!r}",
        "rules": "rules={{{key!r}: {value!r}}}",
        "judge": "judge={value!r}",
        "groups.partitions": "group_partitions={value}",
    },
    {
        "as_of_offsets": "a log partition and an offset, as in {3: 12000}",
        "as_of_time": f"a datetime, offsets as in {{3: 12000}}, or text as in {TIME_FORMS}",
    },
)
KEYS = FieldNames({})
"""Keys of the audit's YAML file, with their dots."""


def input_spec(names: FieldNames, **values: Any) -> InputSpec:
    """Build an InputSpec and refuse invalid values in one line.

    Args:
        names: how messages name its fields.
        values: values of its fields; None keeps the default.
    Raises:
        ShareStateError: if a value cannot be used.
    """
    try:
        return InputSpec(**values)
    except NotATimeError as error:
        # parse_time does not know how the caller wrote the field.
        reason = error.reason or f"give {names.expected['as_of_time']}"
        raise InputError(f"{names.name('as_of_time', value=values['as_of_time'])}: {reason}") from None
    except ValidationError as error:
        raise ShareStateError(_refusal(names, values, error.errors()[0])) from None


def _refusal(names: FieldNames, value: Any, error: Any) -> str:
    path, is_key = [part for part in error["loc"] if part != "[key]"], error["loc"][-1] == "[key]"
    name = next((part for part in path if part in names.texts), ".".join(map(str, path)))
    for part in path:
        value = value[part] if isinstance(value, dict | list) else error["input"]
    text = names.name(name, path[-1], value)
    if is_key and name == "rules":
        return f"{text}: no such rule; `share-state rules` lists them"
    choices = error.get("ctx", {}).get("expected", "").replace(" or ", ", ").replace("'", "")
    expected = f"one of {choices}" if choices else error["msg"].removeprefix("Input should be ")
    if is_key:
        return f"{text}: no such column; give {expected}"
    return f"{text}: give {names.expected.get(name) or expected}"
