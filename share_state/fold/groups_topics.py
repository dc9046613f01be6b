"""Topics as the groups tell them, and as a person gives them: one list of names, and the numbers of partitions."""

from collections.abc import Mapping

import pyarrow as pa

from share_state.fold.topics import Topics


def completed(given: Topics, names: Mapping[str, str]) -> Topics:
    """Given topics, with the names of others added; a name that is given wins.

    Args:
        given: names and end offsets from elsewhere.
        names: topic id -> name, as of FoldedGroups.
    """
    every = dict(names) | names_of(given)
    table = pa.table({
        "topic_id": pa.array(list(every), pa.string()),
        "topic": pa.array(list(every.values()), pa.string()),
    })  # fmt: skip
    return Topics(table, given.ends)


def names_of(topics: Topics) -> dict[str, str]:
    """Topic id -> name."""
    return {row["topic_id"]: row["topic"] for row in topics.names.to_pylist()}


def sizes_by_id(topics: Topics) -> dict[str, int]:
    """Topic id -> number of partitions, as the end offsets show it."""
    sizes: dict[str, int] = {}
    for row in topics.ends.to_pylist():
        sizes[row["topic_id"]] = max(sizes.get(row["topic_id"], 0), row["partition"] + 1)
    return sizes


def sizes_by_name(topics: Topics) -> dict[str, int]:
    """Topic name -> number of partitions; of several topics of one name the largest."""
    names, sizes = names_of(topics), dict[str, int]()
    for topic_id, size in sizes_by_id(topics).items():
        if topic_id in names:
            sizes[names[topic_id]] = max(sizes.get(names[topic_id], 0), size)
    return sizes
