"""An S3 server on this machine, and what is put there."""

import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow.fs as pafs

BUCKET = "exports"
KEY_ID, SECRET = "AKIATESTTESTTESTTEST", "a-secret-that-no-message-may-show"


def environment(address: str) -> dict[str, str]:
    """What lets pyarrow and delta-rs in."""
    return {
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": address,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ALLOW_HTTP": "true",
    }


@contextmanager
def server() -> Iterator[str]:
    """A server with one empty bucket, at the address that is given."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    # A process: where a library waits for an answer and keeps the interpreter's lock, a thread could not give one.
    command = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as started:
        try:
            _wait_for(started, port)
            client(f"http://127.0.0.1:{port}").create_dir(BUCKET)
            yield f"http://127.0.0.1:{port}"
        finally:
            started.kill()


def _wait_for(started: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            assert started.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)


def client(address: str) -> pafs.S3FileSystem:
    """A file system of the test's own."""
    return pafs.S3FileSystem(
        access_key=KEY_ID,
        secret_key=SECRET,
        endpoint_override=address.removeprefix("http://"),
        scheme="http",
        region="us-east-1",
        allow_bucket_creation=True,
    )


def put(address: str, source: Path, key: str) -> str:
    """Copy a local file or folder into the bucket; its address there."""
    there = client(address)
    files = [source] if source.is_file() else [file for file in sorted(source.rglob("*")) if file.is_file()]
    for file in files:
        name = key if file == source else f"{key}/{file.relative_to(source).as_posix()}"
        with there.open_output_stream(f"{BUCKET}/{name}", compression=None) as stream:
            stream.write(file.read_bytes())
    return f"s3://{BUCKET}/{key}"


@contextmanager
def checking_who_asks(address: str) -> Iterator[None]:
    """Lets the server refuse everybody whom it does not know: us, too."""
    _tell(address, "reset-auth", b"0")
    try:
        yield
    finally:
        _tell(address, "reset-auth", b"inf")


def _tell(address: str, what: str, data: bytes) -> None:
    told = urllib.request.Request(f"{address}/moto-api/{what}", data, {"Content-Type": "text/plain"}, method="POST")
    urllib.request.urlopen(told, timeout=10).close()


@contextmanager
def cutting(address: str, after: int) -> Iterator[str]:
    """A way to the server on which an answer ends after so many bytes; its address."""
    with _between(address, after, list[bytes]()) as between:
        yield between


@contextmanager
def counting(address: str) -> Iterator[tuple[str, Callable[[], int]]]:
    """A way to the server that counts requests; its address, and what tells how many there were."""
    asked = list[bytes]()
    with _between(address, 1 << 40, asked) as between:
        yield between, lambda: b"".join(asked).count(b" HTTP/1.1\r\n")


@contextmanager
def _between(address: str, after: int, asked: list[bytes]) -> Iterator[str]:
    listening = socket.create_server(("127.0.0.1", 0))
    host, port = address.removeprefix("http://").split(":")

    def serve() -> None:
        while True:
            try:
                asking, _ = listening.accept()
            except OSError:
                return
            answering = socket.create_connection((host, int(port)))
            threading.Thread(target=_forward, args=(asking, answering, 1 << 40, asked), daemon=True).start()
            threading.Thread(target=_forward, args=(answering, asking, after), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.close()


def _forward(source: socket.socket, to: socket.socket, left: int, seen: list[bytes] | None = None) -> None:
    try:
        while left > 0 and (data := source.recv(min(left, 1 << 16))):
            to.sendall(data)
            left -= len(data)
            if seen is not None:
                seen.append(data)
    except OSError:
        pass
    for one in (source, to):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
