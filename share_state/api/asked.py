"""What a call names, as the work that is to be done."""

from collections.abc import Mapping, Sequence
from os import PathLike, fspath

from share_state.as_of import AsOf, windows
from share_state.errors import ShareStateError
from share_state.fold.topics import Topics
from share_state.inputs import DIALECTS, logs_of, state_partitions_found
from share_state.topics_file import read_topics
from share_state.work import Work

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]

TopicsGiven = Topics | str | PathLike[str] | None
"""Names and end offsets of topics: a JSON file as `--topics` takes it, or `Topics`."""


def listed(paths: Paths) -> list[str]:
    """What was named, one text each."""
    named = [paths] if isinstance(paths, str | PathLike) else list(paths)
    return [fspath(path) for path in named]


def known_topics(topics: TopicsGiven) -> Topics:
    """The names and end offsets that were given.

    Raises:
        ShareStateError: if the file cannot be used.
    """
    return topics if isinstance(topics, Topics) else read_topics(None if topics is None else fspath(topics))


def work_of(
    paths: Paths,
    as_of: AsOf | None,
    topics: TopicsGiven,
    dialect: str,
    rules: Mapping[str, str] | None = None,
) -> Work:
    """The work that a call asks for.

    Args:
        paths: what to read.
        as_of: a datetime, or log partition -> offset.
        topics: names and end offsets.
        dialect: auto, share_group_state or control_records.
        rules: rule -> error, warning, info or off.
    Raises:
        InputError: if a path is missing or holds no such log.
        ShareStateError: if an argument cannot be used.
    """
    if dialect not in DIALECTS:
        raise ShareStateError(f"dialect={dialect!r}: give one of {', '.join(DIALECTS)}")
    logs = logs_of(listed(paths), dialect)
    everywhere, own = windows(as_of, logs)
    return Work(
        logs=logs,
        windows=own,
        window=everywhere,
        topics=known_topics(topics),
        state_partitions=state_partitions_found(logs),
        severities=severities_of(rules or {}),
    )


def severities_of(rules: Mapping[str, str]) -> dict[str, str]:
    """The severities that were given.

    Raises:
        ShareStateError: if there is no such rule or severity.
    """
    from share_state.rules import OFF, SEVERITIES, registered  # noqa: PLC0415  a call without rules needs none of them

    for code, severity in rules.items():
        if code not in registered() or severity not in (*SEVERITIES, OFF):
            wanted = f"give one of {', '.join((*SEVERITIES, OFF))} to a rule that `share-state rules` lists"
            raise ShareStateError(f"rules={{{code!r}: {severity!r}}}: {wanted}")
    return dict(rules)
