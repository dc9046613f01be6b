"""Bodies of batches, compressed as Kafka's producers do, sound or damaged."""

import os
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.kafka.compression import DecompressionError, decompress
from tests.kafka.batches import packed

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
EVERY = pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
bodies = st.binary(max_size=2000) | st.builds(
    lambda part, times: part * times, st.binary(max_size=9), st.integers(0, 10**6)
)


@EVERY
@given(plain=bodies)
def test_what_was_compressed_comes_back(codec: int, plain: bytes):
    assert decompress(codec, packed(codec, plain)) == plain


@EVERY
def test_threads_inflate_at_the_same_time(codec: int):
    bodies = [(plain, packed(codec, plain)) for plain in (os.urandom(99) * times for times in range(1, 300))]
    with ThreadPoolExecutor(4) as threads:
        passes = [threads.submit(lambda: [decompress(codec, body) for _, body in bodies]) for _ in range(8)]
        assert all(one.result() == [plain for plain, _ in bodies] for one in passes)


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=5))
def test_a_body_of_several_snappy_blocks_is_their_sum(blocks: list[bytes]):
    body = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    for block in blocks:
        squeezed = pa.compress(block, codec="snappy", asbytes=True)
        body += struct.pack(">i", len(squeezed)) + squeezed
    assert decompress(SNAPPY, body) == b"".join(blocks)


@given(st.binary(min_size=1, max_size=3000))
def test_a_bare_snappy_block_is_read(plain: bytes):
    assert decompress(SNAPPY, pa.compress(plain, codec="snappy", asbytes=True)) == plain


@EVERY
@given(noise=st.binary(max_size=200))
def test_noise_is_refused_or_read_but_raises_nothing_else(codec: int, noise: bytes):
    try:
        decompress(codec, noise)
    except DecompressionError as refused:
        assert "\n" not in str(refused)


@pytest.mark.parametrize("codec", [0, 5, 6, 7])
def test_an_unknown_codec_is_refused(codec: int):
    with pytest.raises(DecompressionError, match=f"codec {codec} is unknown"):
        decompress(codec, b"anything")


@pytest.mark.parametrize("size", [-1, 100, 2**31 - 1])
def test_a_snappy_block_that_runs_past_its_body_is_refused(size: int):
    with pytest.raises(DecompressionError, match="runs past the batch"):
        decompress(SNAPPY, b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, size) + b"short")


def test_a_snappy_block_that_claims_too_much_is_refused_before_it_is_unpacked():
    for claim in (b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07", b"\x80\x80\x80\x04"):
        with pytest.raises(DecompressionError, match=r"claims|more than"):
            decompress(SNAPPY, claim + b"abc")
    with pytest.raises(DecompressionError, match="invalid header"):
        decompress(SNAPPY, b"\xff" * 9)


@pytest.mark.parametrize("codec", [GZIP, ZSTD])
@given(parts=st.lists(bodies, min_size=1, max_size=4))
def test_a_body_of_several_frames_is_their_sum(codec: int, parts: list[bytes]):
    assert decompress(codec, b"".join(packed(codec, part) for part in parts)) == b"".join(parts)


@given(bodies, st.binary(max_size=9))
def test_what_lies_behind_the_first_lz4_frame_is_left_alone(plain: bytes, behind: bytes):
    assert decompress(LZ4, packed(LZ4, plain) + behind) == plain


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
@given(plain=bodies, data=st.data())
def test_a_body_that_ends_early_is_refused(codec: int, plain: bytes, data: st.DataObject):
    whole = packed(codec, plain)
    with pytest.raises(DecompressionError):
        decompress(codec, whole[: data.draw(st.integers(0, len(whole) - 1))])


@EVERY
def test_a_body_that_grows_beyond_all_measure_is_refused(codec: int):
    assert len(decompress(codec, packed(codec, bytes(1 << 20)), 1 << 20)) == 1 << 20
    with pytest.raises(DecompressionError):
        decompress(codec, packed(codec, bytes((1 << 20) + 1)), 1 << 20)


@EVERY
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="tells its memory on Linux only")
def test_damaged_bodies_leave_no_memory_behind(codec: int):
    damaged = packed(codec, b"records" * 1000)[:-9]
    before = _address_space()
    for _ in range(300):
        with pytest.raises(DecompressionError):
            decompress(codec, damaged)
    assert _address_space() - before < 200 << 20


def _address_space() -> int:
    """Bytes of this process's address space."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
