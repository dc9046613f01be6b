"""The keys of the audit's settings.

`input_spec` has those of its sections that describe the input and the limits.

Each key has a type, a range, a default and a meaning, for loading, messages and docs.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cache
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BeforeValidator, Field, model_validator

from share_state.config.declaration import NEST, PREFIX
from share_state.config.input_spec import InputSpec
from share_state.config.sections import InputSettings, PathText, RuleCode, Section, Severity, Source
from share_state.errors import printable
from share_state.stores.paths import to_path

KeyPath = tuple[str | int, ...]
"""The names from the top of the configuration to a value; a list item is named by its number."""


def dotted(path: KeyPath) -> str:
    """A key as a file and `--set` write it: `limits.delivery_count`."""
    return ".".join(map(printable, path))


def variable(path: KeyPath) -> str:
    """The environment variable of a key: `SHARE_STATE_LIMITS__DELIVERY_COUNT`."""
    return PREFIX + NEST.join(map(str, path)).upper()


_SECRET = re.compile(r"(?i)secret|password|token|access[.]?key")
_CENTURY_DAYS = 36_500

Clock = Literal["log", "wall"]
Verdict = Literal["NO_MEMBERS", "GIVING_UP", "STALL", "STOP", "REWIND"]
FailingVerdict = Literal["none", Verdict]


def _to_date(value: Any) -> date:
    return value if isinstance(value, date) else date.fromisoformat(value)


class ReportSettings(Section):
    """Files that the audit writes in addition to the tables."""

    html: PathText | None = Field(default=None, description="HTML page; none by default")
    index: PathText | None = Field(
        default=None,
        description="HTML page that the audits of several clusters keep together: one row a cluster, the worst first",
    )
    prometheus: PathText | None = Field(
        default=None, description="metrics for the textfile collector; none by default"
    )
    prometheus_share_partitions: int = Field(
        default=2000,
        ge=0,
        le=10_000_000,
        description="share-partitions with metrics of their own, the worst first; groups are counted in full",
    )


class Acknowledged(Section):
    """Findings, or a verdict, that a person has acknowledged: headline and exit code ignore them, the tables do not."""

    rule: RuleCode | None = Field(default=None, description="code of the rule; or give verdict")
    verdict: Verdict | None = Field(default=None, description="verdict of share-partitions; or give rule")
    group: str | None = Field(default=None, description="only of this group")
    topic: str | None = Field(default=None, description="only of this topic, by name or id")
    partition: int | None = Field(default=None, ge=0, description="only of this partition of the topic")
    state_partition: int | None = Field(
        default=None, ge=0, description="only of this partition of the state topic"
    )
    until: Annotated[date, BeforeValidator(_to_date)] | None = Field(
        default=None, description="last day (UTC) of the acknowledgement; default: no end"
    )

    @model_validator(mode="after")
    def _names_one(self) -> Self:
        if (self.rule is None) == (self.verdict is None):
            raise ValueError("either a rule or a verdict")
        return self

    def is_in_force(self, at: datetime) -> bool:
        """Whether it still counts at a time."""
        return self.until is None or at.astimezone(UTC).date() <= self.until


class RetentionSettings(Section):
    """How long the warehouse keeps history and the files of replaced rows."""

    history_days: int = Field(
        default=90, ge=1, le=_CENTURY_DAYS, description="days that the history of runs is kept"
    )
    replaced_files_days: int = Field(
        default=7,
        ge=7,
        le=_CENTURY_DAYS,
        description="days that files of replaced rows are kept for slow readers",
    )


class SparkSettings(Section):
    """The Spark session of the audit."""

    master: str | None = Field(
        default=None, min_length=1, description="Spark master; default: `local[*]` if Spark is needed"
    )
    conf: dict[str, str] = Field(default={}, description="Spark settings, name to value")


class AuditSettings(InputSettings):
    """What the nightly audit of one cluster reads, writes, checks and reports.

    Attributes are the keys of the file; docs/audit-configuration.md lists them. Built by `load_settings` or
    `settings_for`, whose messages name where an invalid value comes from.
    """

    cluster: str = Field(
        default="",
        description="name of the cluster in reports and metrics; a warehouse belongs to one cluster",
    )
    sources: list[Source] = Field(min_length=1, description="exports that are read as one input")
    warehouse: PathText = Field(
        description="folder, address or, on Spark, `catalog.schema` of the Delta tables"
    )
    clock: Clock = Field(
        default="log",
        description="end of measured durations: the last record of each log partition, or the time of the audit",
    )
    fail_on: Severity = Field(
        default="error", description="exit with 1 if a finding has this severity or a higher one"
    )
    fail_on_verdict: FailingVerdict = Field(
        default="none", description="also exit with 1 if a share-partition has this verdict or a worse one"
    )
    acknowledged: list[Acknowledged] = Field(
        default=[],
        description="findings and verdicts that count neither in the headline nor for the exit code",
    )
    report: ReportSettings = Field(default_factory=ReportSettings)
    retention: RetentionSettings = Field(default_factory=RetentionSettings)
    spark: SparkSettings = Field(default_factory=SparkSettings)

    def input_spec(self) -> InputSpec:
        """What the audit reads and how it folds it."""
        shared = AuditSettings.model_fields.keys() & InputSpec.model_fields.keys()
        return InputSpec(**{name: getattr(self, name) for name in shared})

    def describe(self) -> dict[str, str]:
        """The settings that differ from their defaults, for the row of a run.

        Returns:
            Dotted key -> value as text. Values of Spark settings whose name indicates a secret are hidden.
        """
        values = {}
        for path, value in _configured(self, ()):
            hidden = path[:2] == ("spark", "conf") and _SECRET.search(str(path[2]))
            values[dotted(path)] = "(hidden)" if hidden else str(value)
        return values


_SHAPING = ("state_partitions", "limits", "rules", "topics", "clock", "groups", "control_records", "dead_letters",
            "dead_letters_copied_last")  # fmt: skip
"""Keys that change the contents of the tables."""
_OF_THE_CLOCK = ("limits.export_age",)
"""Keys below them that change nothing about what was read before."""


def config_fingerprint(settings: AuditSettings) -> dict[str, str]:
    """The settings that change the contents of the tables.

    If they change, an audit judges everything again.
    """
    described = settings.describe().items()
    fingerprint = {
        key: value
        for key, value in described
        if key.partition(".")[0] in _SHAPING and key not in _OF_THE_CLOCK
    }
    files = {
        "topics": settings.topics,
        "control_records.subscriptions": settings.control_records.subscriptions,
    }
    for key, path in files.items():
        if path is not None:
            fingerprint[f"{key}.digest"] = hashlib.sha256(to_path(path).read_bytes()).hexdigest()[:16]
    return fingerprint


def _configured(section: Section, above: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """The values below a section that differ from their defaults, and every entry of a list or map."""
    for name, field in type(section).model_fields.items():
        path, value = (*above, name), getattr(section, name)
        if isinstance(value, Section):
            yield from _configured(value, path)
        elif isinstance(value, list | dict):
            for key, one in value.items() if isinstance(value, dict) else enumerate(value):
                yield from (
                    _configured(one, (*path, key)) if isinstance(one, Section) else [((*path, key), one)]
                )
        elif value is not None and value != field.default:
            yield path, value


@cache
def settings_schema() -> dict[str, Any]:
    """The JSON schema of the model, with references resolved and `or null` dropped."""
    schema = AuditSettings.model_json_schema()

    def written_out(part: dict[str, Any]) -> dict[str, Any]:
        if "anyOf" in part:
            part = {**part["anyOf"][0], **part}
        if "$ref" in part:
            part = {**schema["$defs"][part["$ref"].rpartition("/")[2]], **part}
        inner = {
            name: written_out(part[name]) for name in ("items", "additionalProperties") if part.get(name)
        }
        if "properties" in part:
            inner["properties"] = {name: written_out(one) for name, one in part["properties"].items()}
        return {**part, **inner}

    return written_out(schema)


def declaration_below(declared: Mapping[str, Any], name: str | int) -> dict[str, Any] | None:
    """The schema of a key of a section, an item of a list, or a name of a map.

    None if there is no such key.
    """
    if "properties" in declared:
        return declared["properties"].get(name)
    if "items" in declared:
        return declared["items"] if re.fullmatch(r"\d{1,4}", str(name)) else None
    return declared.get("additionalProperties")


def declared_at(path: KeyPath) -> dict[str, Any] | None:
    """The schema of a key; None if there is no such key."""
    declared: dict[str, Any] | None = settings_schema()
    for name in path:
        declared = declared and declaration_below(declared, name)
    return declared


def expected(declared: Mapping[str, Any]) -> str:
    """The valid values of a key, in words."""
    match declared:
        case {"enum": [*most, last]}:
            return f"{', '.join(most)} or {last}"
        case {"type": "integer", "minimum": least, "maximum": most}:
            return f"a whole number from {least} to {most}"
        case {"type": "number", "exclusiveMinimum": bound}:
            return f"a number over {bound:g}"
        case {"type": "number", "minimum": least}:
            return f"a number of at least {least:g}"
        case {"properties": known}:
            return f"a map of {', '.join(known)}"
        case {"type": "boolean"}:
            return "true or false"
        case {"items": item}:
            return f"a list of one or more: {expected(item)}"
        case {"additionalProperties": dict(value)}:
            return f"a map of names to {expected(value)}"
        case {"format": "path"}:
            return "a path"
        case {"format": "date"}:
            return "a date, as in 2026-11-30"
    return "text"


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the configuration.

    Attributes:
        name: dotted name, with N for the number of a list item.
        expected: valid values, in words.
        default: default as YAML writes it, in backticks; "required" if there is none.
        variable: the environment variable that overrides it.
        meaning: one line.
    """

    name: str
    expected: str
    default: str
    variable: str
    meaning: str


def keys(section: Mapping[str, Any] | None = None, above: KeyPath = ()) -> Iterator[Key]:
    """Every key of the model, or of a section, in the order of the model.

    A list before the keys of its items.
    """
    for name, one in (section or settings_schema())["properties"].items():
        path = (*above, name)
        if "properties" in one:
            yield from keys(one, path)
            continue
        default = f"`{_plain_yaml(one['default'])}`" if "default" in one else "required"
        yield Key(dotted(path), expected(one), default, variable(path), one["description"])
        if "properties" in one.get("items", {}):
            yield from keys(one["items"], (*path, "N"))


def _plain_yaml(default: Any) -> str:
    return yaml.safe_dump(default, default_flow_style=True).splitlines()[0]
