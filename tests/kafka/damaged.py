"""Values of `__share_group_state` to draw: whatever a writer might put into one, and what damage makes of it."""

from hypothesis import strategies as st

from share_state.kafka.codec import encode
from share_state.schema.declarations import layout

NUMBERS = {
    "uint16": st.integers(0, 2**16 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
}
TAGS = st.lists(
    st.tuples(st.integers(1, 300) | st.integers(2**31 - 2, 2**32 - 1), st.binary(max_size=5)), max_size=2
)  # fmt: skip
BATCH = st.fixed_dictionaries(
    {
        "first_offset": NUMBERS["int64"],
        "last_offset": NUMBERS["int64"],
        "delivery_state": st.integers(-128, 127),
        "delivery_count": st.integers(-(2**15), 2**15 - 1),
        "unknown_tags": TAGS | st.just([(0, b"12345678")]),
    }
)


@st.composite
def written(draw: st.DrawFn, kind: str, releases: str) -> bytes:
    """The value of a snapshot or update, with tags of a newer writer at both levels."""
    shape = layout(f"share_{kind}_value", releases)
    numbers = {one.name: draw(NUMBERS[one.type]) for one in shape.fields if one.type in NUMBERS and one.tag is None}
    counts = {one.name: draw(st.just(one.default) | NUMBERS[one.type]) for one in shape.fields if one.tag is not None}
    batches = draw(st.lists(BATCH, max_size=3))
    return encode(shape, numbers | counts | {"state_batches": batches, "unknown_tags": draw(TAGS)})


@st.composite
def damaged(draw: st.DrawFn, kind: str, releases: str) -> bytes:
    """A value with a few bytes changed, lost or added, most often where the lengths are."""
    data = bytearray(draw(written(kind, releases)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)) | st.integers(max(0, len(data) - 12), len(data)))
        new = draw(st.binary(max_size=2) | st.sampled_from([b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x10"]))
        data[at : at + draw(st.integers(0, 3))] = new
    return bytes(data)
