"""`share-state show --cluster`: what a run used of the cluster, and where each fact comes from."""

import re
from collections.abc import Iterator, Mapping

from share_state.delta.committed import CommittedTables
from share_state.report.console import print_json, print_table
from share_state.report.share_partitions import plain_run
from share_state.sources.topics import TOPICS_HINT

_FACT = "cluster_facts."
_VALUE = re.compile(r"(?P<value>-?[0-9]+) \((?P<source>.*)\)", re.DOTALL)
_LIMIT = "limits."
_OF_CLUSTER = "limits.of_cluster."

_NO_FACTS = (
    "the run read no fact about the cluster: limits are Kafka's defaults, and names of topics come from the groups;"
    f" export a broker's data folder with __cluster_metadata-0, or {TOPICS_HINT}"
)


def cluster_facts(options: Mapping[str, str]) -> Iterator[dict[str, str | None]]:
    """The facts in the options of a run: what it is, its value (None for many, as names of topics), its source.

    Args:
        options: `options` in the row of `runs`.
    """
    for name, text in sorted(options.items()):
        if name.startswith(_FACT) and name != f"{_FACT}digest":
            found = _VALUE.fullmatch(text)
            value, source = (found["value"], found["source"]) if found else (None, text)
            yield {"fact": name.removeprefix(_FACT), "value": value, "source": source}
        elif name.startswith(_LIMIT) and not name.startswith(_OF_CLUSTER):
            yield {
                "fact": name,
                "value": text,
                "source": "the call, its configuration, or the group's own configs",
            }


def print_cluster(tables: CommittedTables, *, as_json: bool) -> None:
    """Print the facts about the cluster that the last run of a warehouse used."""
    run = tables.run
    facts = list(cluster_facts(dict(run["options"])))
    if as_json:
        print_json({"run": plain_run(run), "facts": facts})
        return
    rows = [[fact["fact"], fact["value"] or "", fact["source"]] for fact in facts]
    print_table(["FACT", "VALUE", "SOURCE"], rows, numeric={"VALUE"}, otherwise=_NO_FACTS)
