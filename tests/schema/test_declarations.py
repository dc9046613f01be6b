"""The declarations say what the contract says, and what is no declaration is refused with its file and key."""

import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from docs import reference_pages
from docs.reference_pages import blocks_of, records_page, table_page, tables_index
from share_state.errors import DeclarationError
from share_state.schema import declarations
from share_state.schema.declarations import arrow_type, declaration_names, layout, record, table, table_schema

DOCS = Path(__file__).parents[2] / "docs"
RENEW = "run: python -m docs.reference_pages"

KEY = [("dialect", "string"), ("group_id", "string"), ("topic_id", "string"), ("topic", "string"), ("partition", "int")]
BATCHES = (
    "array<struct<first_offset bigint, last_offset bigint, delivery_state tinyint, delivery_count smallint>>"
)  # fmt: skip
CONTRACT = {
    "share_partition_state": [
        *KEY,
        ("state_partition", "int"),
        ("start_offset", "bigint"),
        ("effective_start_offset", "bigint"),
        ("end_offset", "bigint"),
        ("snapshot_epoch", "int"),
        ("state_epoch", "int"),
        ("leader_epoch", "int"),
        ("delivery_complete_count", "int"),
        ("state_batches", BATCHES),
        ("create_time", "timestamp"),
        ("write_time", "timestamp"),
        ("max_leader_epoch", "int"),
        ("max_state_epoch", "int"),
        ("updates_since_snapshot", "int"),
        ("snapshot_offset", "bigint"),
        ("last_offset", "bigint"),
    ],
    "in_flight": [
        *KEY,
        ("first_offset", "bigint"),
        ("last_offset", "bigint"),
        ("record_count", "bigint"),
        ("delivery_state", "tinyint"),
        ("state", "string"),
        ("delivery_count", "smallint"),
        ("terminal", "boolean"),
        ("gap", "boolean"),
    ],
    "cutoff": [
        ("dialect", "string"),
        ("topic", "string"),
        ("partition", "int"),
        ("cutoff_offset", "bigint"),
        ("log_start_offset", "bigint"),
        ("log_end_offset", "bigint"),
        ("redundant_records", "bigint"),
        ("live_share_partitions", "bigint"),
        ("limited_by_group", "string"),
        ("limited_by_topic_id", "string"),
        ("limited_by_partition", "int"),
        ("safe", "boolean"),
        ("reason", "string"),
    ],
    "findings": [
        ("rule", "string"),
        ("severity", "string"),
        *KEY,
        ("state_partition", "int"),
        ("offset", "bigint"),
        ("message", "string"),
        ("evidence", "map<string,string>"),
        ("run_id", "string"),
    ],
    "runs": [
        ("run_id", "string"),
        ("started", "timestamp"),
        ("finished", "timestamp"),
        ("command", "string"),
        ("version", "string"),
        ("inputs", "array<string>"),
        ("records", "bigint"),
        ("state_partitions", "int"),
        ("progress", "map<string,bigint>"),
        ("findings", "map<string,bigint>"),
        ("status", "string"),
    ],
}


@pytest.mark.parametrize("name", CONTRACT)
def test_a_table_begins_with_the_columns_that_people_rely_on(name):
    promised = CONTRACT[name]
    assert [(column.name, column.type) for column in table(name)[1]][: len(promised)] == promised


@pytest.mark.parametrize("name", CONTRACT)
def test_every_column_says_in_one_line_what_it_means(name):
    assert all(column.doc and "\n" not in column.doc for column in table(name)[1])


def test_the_arrow_types_are_those_that_spark_gives_these_names():
    schema = table_schema("share_partition_state")
    assert schema.field("partition").type == pa.int32()
    assert schema.field("start_offset").type == pa.int64()
    assert schema.field("write_time").type == pa.timestamp("us", tz="UTC")
    assert schema.field("state_batches").type == pa.list_(
        pa.struct(
            [
                ("first_offset", pa.int64()),
                ("last_offset", pa.int64()),
                ("delivery_state", pa.int8()),
                ("delivery_count", pa.int16()),
            ]
        )
    )
    assert table_schema("runs").field("progress").type == pa.map_(pa.string(), pa.int64())


def test_types_nest():
    assert arrow_type("map<string,array<struct<a int,b map<string,boolean>>>>") == pa.map_(
        pa.string(),
        pa.list_(pa.struct([("a", pa.int32()), ("b", pa.map_(pa.string(), pa.bool_()))])),
    )


@pytest.mark.parametrize("text", ["long", "array<bigint", "map<string>", "array<int,int>", "struct<a>", ""])
def test_a_type_that_is_not_known_is_refused(text):
    with pytest.raises(DeclarationError, match="is unknown"):
        arrow_type(text)


def forget():
    """What was read from one folder must not be taken for another's."""
    for cached in ("table", "table_schema", "record", "struct", "layout"):
        getattr(declarations, cached).cache_clear()


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Puts a declaration into a folder of its own that is read in place of the shipped one."""
    (tmp_path / "tables").mkdir()
    (tmp_path / "records").mkdir()
    monkeypatch.setattr(declarations, "resource_folder", lambda _: tmp_path)
    forget()
    yield lambda name, text: (tmp_path / name).write_text(text, encoding="utf-8")
    forget()


TABLE = """
table: t
doc: any
columns:
  - {name: a, type: bigint, doc: "any"}
"""
RECORD = """
name: R
log: any
part: value
key_type: 0
doc: any
layouts:
  - releases: "1.0"
    version: 0
    flexible: true
    fields:
      - {name: a, type: int32, doc: "any"}
      - {name: b, type: int32, tag: 0, default: -1, doc: "any"}
"""


def test_a_declared_table_is_read(write):
    write("tables/t.yaml", TABLE)
    assert table_schema("t") == pa.schema([("a", pa.int64())])


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("doc: any\n", "doc: any\ncomment: x\n", "comment: Extra inputs"),
        ("type: bigint", "type: bigint, unit: ms", "columns.0.*unit: Extra inputs"),
        ("type: bigint", "type: long", "columns.0.*type: .*type 'long' is unknown"),
        ("table: t\n", "", "table: Field required"),
        ("{name: a", "{name: [a", "t.yaml: .*expected"),
        ("- {name: a", "- {columns_of: nobody, name: a", "columns.0"),
    ],
)
def test_a_table_that_is_wrong_is_refused_with_its_file_and_key(write, old, new, key):
    assert old in TABLE
    write("tables/t.yaml", TABLE.replace(old, new))
    with pytest.raises(DeclarationError, match=rf"t\.yaml: .*{key}|{key}") as refused:
        table_schema("t")
    assert "tables/t.yaml" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_table_that_is_not_there_is_refused(write):
    with pytest.raises(DeclarationError, match=r"tables/none\.yaml: cannot be read"):
        table("none")


def test_a_declared_record_is_read(write):
    write("records/r.yaml", RECORD)
    fields = layout("r", "1.0").fields
    assert [(field.name, field.tag, field.default) for field in fields] == [("a", None, None), ("b", 0, -1)]


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("key_type: 0", "key_type: 0\napi_key: 0", "api_key: Extra inputs"),
        ("type: int32, doc", "type: int32, size: 4, doc", "layouts.0.fields.0.size: Extra inputs"),
        ("type: int32, doc", "type: int24, doc", "a: type 'int24' is unknown"),
        ("type: int32, doc", 'type: "[]Nobody", doc', r"a: type '\[\]Nobody' is unknown"),
        ("type: int32, doc", 'type: "../tables/t", doc', "a: type '../tables/t' is unknown"),
        ("part: value", "part: body", "part: Input should be 'key', 'value', 'data' or 'message'"),
        ("tag: 0, default: -1", "tag: 0", "fields.1.*a tagged field needs a default"),
        ("flexible: true", "flexible: false", "layouts.0: .*only a flexible layout"),
        ("name: b", "name: a", "layouts.0: .*field 'a' is declared twice"),
        ("    version: 0\n", "", "layout 1.0: a value or message has a version"),
        ("part: value", "part: key", "layout 1.0: .*a key has none"),
    ],
)
def test_a_record_that_is_wrong_is_refused_with_its_file_and_key(write, old, new, key):
    assert old in RECORD
    write("records/r.yaml", RECORD.replace(old, new, 1))
    with pytest.raises(DeclarationError, match=rf"r\.yaml: .*{key}|r\.yaml: {key}") as refused:
        layout("r", "1.0")
    assert "\n" not in str(refused.value)


def test_a_layout_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(DeclarationError, match=r"no layout '3\.9'; there are 4\.0, 4\.1\+"):
        layout("share_update_value", "3.9")


def test_declarations_do_not_change():
    with pytest.raises(ValueError, match="frozen"):
        record("share_update_value").key_type = 7


def test_the_page_of_records_is_what_the_declarations_say():
    assert (DOCS / "records.md").read_text(encoding="utf-8") == records_page(), RENEW


@pytest.mark.parametrize("name", declaration_names("tables", "table"))
def test_the_page_of_a_table_is_what_its_declaration_says(name: str):
    page = (DOCS / "tables" / f"{name}.md").read_text(encoding="utf-8")
    assert page == table_page(name, page), RENEW
    assert page.startswith(f"# {name}\n")
    assert blocks_of(page) == ["doc", "columns"]
    for column in table(name)[1]:
        assert f"| {column.name} | `{column.type}` |" in page


def test_the_index_of_tables_names_each_and_there_is_no_other_page():
    assert (DOCS / "tables" / "README.md").read_text(encoding="utf-8") == tables_index(), RENEW
    pages = {path.stem for path in (DOCS / "tables").glob("*.md")} - {"README"}
    assert pages == set(declaration_names("tables", "table"))


def test_the_page_of_records_shows_every_declaration():
    shown = records_page()
    records = re.findall(r"^## (Share(?!Group)\w+|StateBatch)$", shown, re.MULTILINE)
    of_state_topic = ["ShareSnapshotKey", "ShareSnapshotValue", "ShareUpdateKey", "ShareUpdateValue"]
    assert records == ["ShareCheckpointValue", "ShareDeltaValue", *of_state_topic, "StateBatch"]
    of_groups = re.findall(r"^## (ShareGroup\w+)(Key|Value)$", shown, re.MULTILINE)
    assert len(of_groups) == 14
    assert {one[0] for one in of_groups[::2]} == {one[0] for one in of_groups[1::2]}
    assert "In `__consumer_offsets`: inside the value of record type 2." in shown
    assert "| delivery_complete_count | `int32`, tag 0, default -1 | terminal offsets" in shown


def test_stale_pages_are_renewed(tmp_path):
    folder = tmp_path / "docs"
    shutil.copytree(DOCS, folder)
    (folder / "records.md").unlink()
    (folder / "tables" / "README.md").unlink()
    page = folder / "tables" / "cutoff.md"
    page.write_text(page.read_text(encoding="utf-8").replace("`bigint`", "`text`"), encoding="utf-8")
    reference_pages.write_declared_pages(folder)
    for path in ("records.md", "tables/README.md", "tables/cutoff.md"):
        assert (folder / path).read_text(encoding="utf-8") == (DOCS / path).read_text(encoding="utf-8")
