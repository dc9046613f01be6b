"""The sections that describe an input: what to read, how to fold it, the limits and the rules.

Each field is the declaration of an option (share_state/config/declaration.py), or says why it is none.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from share_state.config.declaration import (
    DATA_SOURCE,
    FOLD,
    LIMITS,
    PYTHON_CALLS,
    READING_COMMANDS,
    RULES,
    NoOption,
    Option,
    python,
)
from share_state.fold.limits import GroupLimits, Limits
from share_state.kafka.releases import SIMULATED, release_of
from share_state.sources.formats import AUTO, format_names
from share_state.sources.kafka_client import KAFKA_FORM
from share_state.stores.paths import normalize_address

HISTORY, LATEST = "history", "latest"
"""Which records of classic consumer groups are judged: all in the log, or the latest of each group."""

INT32_MAX = 2**31 - 1


def _off_if_false(value: Any) -> Any:
    """Accept false for `off`: programs that write YAML or JSON turn a bare `off` of YAML 1.1 into false."""
    return "off" if str(value).lower() in ("off", "false") else value


def _release_name(version: Any) -> Any:
    """The name of the release that a version such as `4.4.0` stands for."""
    release = release_of(str(version))
    return version if release is None else release.name


def _is_registered(code: str) -> str:
    from share_state.rules.registry import registered  # noqa: PLC0415  rules import the fold

    if code not in registered():
        raise ValueError("no such rule")
    return code


def _to_address(path: str) -> str:
    address = normalize_address(path)
    if not address or "\0" in address:
        raise ValueError("no path")
    return address


Column = Literal["key", "value", "topic", "partition", "offset", "timestamp"]
COLUMNS: tuple[str, ...] = get_args(Column)
"""The columns of records, as options and calls rename them."""
Dialect = Literal["auto", "share_group_state", "control_records"]
Claims = Literal["history", "latest"]
Mode = Literal["strict", "best-effort"]
if TYPE_CHECKING:
    Release = str
    FileFormat = str
    Format = str
else:
    Release = Annotated[Literal[SIMULATED], BeforeValidator(_release_name)]
    FileFormat = Literal[(AUTO, *format_names())]
    Format = Literal[(AUTO, *format_names(), KAFKA_FORM)]
Severity = Annotated[Literal["error", "warning", "info", "off"], BeforeValidator(_off_if_false)]
RuleCode = Annotated[str, AfterValidator(_is_registered)]
PathText = Annotated[
    str,
    Field(min_length=1, json_schema_extra={"format": "path"}),
    AfterValidator(_to_address),
]
Count = Annotated[int, Field(ge=1, le=INT32_MAX)]
_KAFKA, _GROUPS = Limits(), GroupLimits()

_STREAM = {"stream": "a stream reads the records of `__share_group_state` with Spark's Kafka columns"}
_ONE_TABLE = {
    DATA_SOURCE: "it returns one table of the state logs; `reconstruct` writes those of dead letters"
}
_CUTOFF_ROWS = {python("cutoff"): "the table `cutoff` names topics by id"}
_TUNES_GROUP_RULES = "tunes single rules over groups: a key of the configuration, and of --set, is enough"


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
        return {
            key: value for key, value in values.items() if value is not None or key not in cls.model_fields
        }


class Source(Section):
    """One export of a cluster's logs, or the cluster."""

    path: Annotated[PathText, NoOption("INPUT of a command, `input` of a call")] = Field(
        description="log folder, .log file, table, text or glob of an export; or kafka://HOST:PORT"
    )
    format: Annotated[Format, Option(without=_STREAM)] = Field(
        default="auto", description="format of the input; auto looks at the content"
    )
    dialect: Annotated[Dialect, Option(without=_STREAM)] = Field(
        default="auto",
        description="records in the logs; control_records are those of the KIP-932 draft; auto looks at folder names",
    )
    columns: Annotated[
        dict[Column, str],
        Option(flag="--column", metavar="NAME=COLUMN", without=_STREAM),
    ] = Field(default={}, description="for a table: our column name to its column name, such as key=k")
    kafka_properties: Annotated[PathText | None, Option(metavar="FILE", also=("compare", "topics"))] = Field(
        default=None,
        description="for kafka://: properties file, as for `--command-config` of Kafka's own tools",
    )


class GroupConfig(Section):
    """The limits that a share group sets for itself; the cluster's limits apply to keys that are left out."""

    delivery_count: int | None = Field(
        default=None, ge=1, le=25, description="`share.delivery.count.limit` of the group"
    )
    record_locks: Count | None = Field(
        default=None, description="`share.partition.max.record.locks` of the group"
    )


class LimitSettings(Section):
    """The limits of the cluster; share_state.fold.limits.Limits has the defaults."""

    delivery_count: int = Field(
        default=_KAFKA.delivery_count,
        ge=1,
        le=25,
        description="`group.share.delivery.count.limit` of the cluster",
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
        default=_KAFKA.chain_length,
        description="control records since a checkpoint above which a chain counts as long",
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
        default=None,
        description="Kafka release or version that wrote the log; default: inferred from the log",
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
    retention_ratio: float = Field(
        default=_KAFKA.retention_ratio,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="share of `retention.ms` of its topic that the first unfinished record may be old",
    )
    export_age: float = Field(
        default=36,
        ge=0,
        allow_inf_nan=False,
        description="hours that the newest record of an export may be old before an audit reports it; 0 for any age",
    )
    groups: dict[str, GroupConfig] = Field(
        default={},
        description="share groups with limits of their own; those of a live cluster are read from it",
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

    paths: Annotated[
        list[PathText] | None,
        Option(name="groups", metavar="GROUP_INPUT", without=_STREAM | _CUTOFF_ROWS),
    ] = Field(
        default=None,
        min_length=1,
        description="exports of `__consumer_offsets`; by default those in the input or next to its logs",
    )
    format: Annotated[
        FileFormat, NoOption("auto looks at the content; a key of the configuration is enough")
    ] = Field(default="auto", description="format of `paths`; auto looks at the content")
    columns: Annotated[dict[Column, str], NoOption("--column and `columns` name those of both sides")] = (
        Field(default={}, description="for a table in `paths`: our column name to its column name")
    )
    partitions: Annotated[
        Count | None, Option(name="group_partitions", metavar="N", without=_STREAM | _CUTOFF_ROWS)
    ] = Field(
        default=None,
        description="number of partitions of `__consumer_offsets`; by default as many as the input shows",
    )
    claims: Annotated[Claims, NoOption(_TUNES_GROUP_RULES)] = Field(
        default=HISTORY,
        description="which records of a classic consumer group are checked: all remaining, or the latest",
    )
    members: Annotated[Count, NoOption(_TUNES_GROUP_RULES)] = Field(
        default=_GROUPS.members, description="`group.share.max.size` of the cluster"
    )
    retry_seconds: Annotated[Count, NoOption(_TUNES_GROUP_RULES)] = Field(
        default=_GROUPS.retry_ms // 1000, description="seconds that a share-partition may be initializing"
    )
    delete_grace_seconds: Annotated[Count, NoOption(_TUNES_GROUP_RULES)] = Field(
        default=_GROUPS.delete_grace_ms // 1000,
        description="seconds that the state of a deleted topic may remain",
    )

    def to_limits(self) -> GroupLimits:
        """Convert to the limits that the rules over groups take."""
        return GroupLimits(self.members, self.retry_seconds * 1000, self.delete_grace_seconds * 1000)


_NO_INDEX = "it checks share snapshot files and writes them again, which only `cutoff` and an audit do"
_ONLY_READING = (*READING_COMMANDS, *map(python, PYTHON_CALLS), DATA_SOURCE)
_NO_WRITING = {
    surface: _NO_INDEX for surface in _ONLY_READING if surface not in ("cutoff", "audit", python("audit"))
}


class ControlSettings(Section):
    """How control records of the KIP-932 draft are folded, and which groups hold back the cutoff."""

    mode: Annotated[Mode, Option(FOLD, without=_STREAM)] = Field(
        default="strict",
        description="for control_records: how a broken chain of deltas is folded: up to the first broken link, or on",
    )
    subscriptions: Annotated[PathText | None, Option(FOLD, metavar="FILE", without=_STREAM)] = Field(
        default=None,
        description="for control_records: JSON file, topic to the groups that subscribe to it; by default every"
        " group of the log",
    )
    ignore_uncheckpointed: Annotated[bool, Option(FOLD, without=_STREAM)] = Field(
        default=False,
        description="for control_records: let groups without a checkpoint not hold back the cutoff",
    )
    index: Annotated[PathText | None, Option(FOLD, metavar="DIR", without=_NO_WRITING | _STREAM)] = Field(
        default=None,
        description="for control_records: folder of share snapshot files, which are checked and written again (not with"
        " --as-of-*)",
    )
    full_read_every: Annotated[
        Count, NoOption("tunes an audit with `index`: a key of the configuration is enough")
    ] = Field(
        default=7,
        description="for control_records: every so many audits reads all of each topic-partition; the others"
        " begin where the share snapshot files say",
    )


class InputSettings(Section):
    """What the configuration of an audit and the description of an input share."""

    sources: list[Source] = Field(default=[], description="exports that are read as one input")
    topics: Annotated[PathText | None, Option(metavar="FILE", without=_CUTOFF_ROWS)] = Field(
        default=None,
        description="JSON file: topic id to name, partitions, end offsets; by default `topics.json` beside the logs",
    )
    state_partitions: Annotated[Count | None, Option(FOLD, metavar="N")] = Field(
        default=None,
        description="number of partitions of `__share_group_state`; by default as many as the input shows",
    )
    groups: GroupSettings | None = Field(default_factory=GroupSettings)
    dead_letters: Annotated[list[PathText], Option(metavar="PATH", without=_ONE_TABLE)] = Field(
        default=[],
        description="exports of the dead-letter topics, or kafka://HOST:PORT; by default those that a broker's data "
        "folder names and holds",
    )
    dead_letters_copied_last: Annotated[bool, Option(without=_ONE_TABLE)] = Field(
        default=False, description="the dead-letter topics were copied after the state logs"
    )
    control_records: ControlSettings = Field(default_factory=ControlSettings)
    limits: Annotated[
        LimitSettings,
        Option(LIMITS, flag="--limit", metavar="[GROUP:]NAME=VALUE"),
    ] = Field(
        default_factory=LimitSettings, description="limit of the cluster, or of one of its share groups"
    )
    rules: Annotated[dict[RuleCode, Severity], Option(RULES, flag="--rule", metavar="CODE=SEVERITY")] = Field(
        default={}, description="severity of a rule: error, warning, info or off"
    )
