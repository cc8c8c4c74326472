"""URLs of stores for KV blocks: what they say, and what is wrong with those that say nothing."""

import pytest

from penstock.configuration.stores import FOLDER_BYTES, parse_store, resolve_store
from penstock.core.config import MooncakeAccess, SharedStore
from penstock.core.errors import ConfigurationError


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("file:///mnt/a%20b", SharedStore("folder", "/mnt/a b", "file:///mnt/a%20b", most_bytes=FOLDER_BYTES)),
        (
            "file://localhost/mnt?size=3GiB",
            SharedStore("folder", "/mnt", "file://localhost/mnt?size=3GiB", "", None, None, 3 << 30),
        ),
        ("valkey://host:1/2", SharedStore("valkey", "redis://host:1/2", "valkey://host:1/2")),
        ("valkeys://me:word@host", SharedStore("valkey", "rediss://me:word@host", "valkeys://me:***@host")),
        (
            "unix:///run/s?password=word&db=2",
            SharedStore("valkey", "unix:///run/s?password=word&db=2", "unix:///run/s?password=***&db=2"),
        ),
        ("s3://bucket", SharedStore("s3", "bucket", "s3://bucket")),
        (
            "s3://bucket/a/b/?endpoint=http://host:1&region=x",
            SharedStore(
                "s3", "bucket", "s3://bucket/a/b/?endpoint=http://host:1&region=x", "a/b", "http://host:1", "x"
            ),
        ),
        (
            "mooncake://master",
            SharedStore(
                "mooncake", "master:50051", "mooncake://master", mooncake=MooncakeAccess(9003, "P2PHANDSHAKE", "tcp")
            ),
        ),
        (
            "mooncake://10.0.0.9:7?metadata=http://10.0.0.9:8080/metadata&protocol=rdma&devices=mlx5_0,mlx5_1"
            "&segment=4GiB&metrics_port=8",
            SharedStore(
                "mooncake",
                "10.0.0.9:7",
                "mooncake://10.0.0.9:7?metadata=http://10.0.0.9:8080/metadata&protocol=rdma&devices=mlx5_0,mlx5_1"
                "&segment=4GiB&metrics_port=8",
                mooncake=MooncakeAccess(8, "http://10.0.0.9:8080/metadata", "rdma", "mlx5_0,mlx5_1", 4 << 30),
            ),
        ),
    ],
)
def test_what_a_url_says(url: str, expected: SharedStore) -> None:
    assert parse_store(url) == expected


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("/mnt/share", "must be a URL such as"),
        ("file:/mnt/share", "must be a URL such as"),
        ("http://host", "must be a URL such as"),
        ("file://host/mnt", "with three slashes"),
        ("file:///", "names no folder"),
        ("file:///mnt?sise=1", "can have size"),
        ("file:///mnt?size=much", "is not a size"),
        ("file:///mnt?size=0", "at least 1 byte"),
        ("redis://", "names no server"),
        ("redis://host?size=1GiB", "maxmemory"),
        ("s3://", "names no bucket"),
        ("s3://bucket?endpoint=host:1", "must be a URL of http"),
        ("s3://bucket?acl=x", "can have endpoint and region"),
        ("s3://[bucket", "is no URL"),
        ("mooncake://", "write mooncake://HOST:PORT"),
        ("mooncake://host/name", "write mooncake://HOST:PORT"),
        ("mooncake://me:word@host", "write mooncake://HOST:PORT"),
        ("mooncake://[::1]:5", "write mooncake://HOST:PORT"),
        ("mooncake://host:99999", "is no URL"),
        ("mooncake://host?size=1", "can have metadata, protocol, devices, segment and metrics_port"),
        ("mooncake://host?metadata=host:8080", "metadata must be P2PHANDSHAKE, or a URL"),
        ("mooncake://host?protocol=udp", "must be tcp or rdma"),
        ("mooncake://host?devices=mlx5_0", "devices are those of protocol=rdma"),
        ("mooncake://host?segment=much", "is not a size"),
        ("mooncake://host?metrics_port=0", "from 1 to 65535"),
        ("mooncake://host?metrics_port=65536", "from 1 to 65535"),
        ("mooncake://host?metrics_port=x", "from 1 to 65535"),
    ],
)
def test_what_is_wrong_is_told(url: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        parse_store(url)


def test_no_password_is_told() -> None:
    notes: list[object] = []
    store = resolve_store("redis://me:word@host", 1, None, lambda *note: notes.extend(note))
    assert store is not None and "word" in store.address and "word" not in str(notes)
    for url in ("redis://me:word@host?size=1", "redis://:word@[host", "sftp://me:word@host"):
        with pytest.raises(ConfigurationError) as error:
            parse_store(url)
        assert "word" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "why_not", "words"),
    [("file:///mnt?size=99", None, "one block of this model takes 100"), ("redis://host", "it is so", "it is so")],
)
def test_what_is_of_no_use_is_told(url: str, why_not: str | None, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        resolve_store(url, 100, why_not, lambda *_note: None)
