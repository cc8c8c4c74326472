"""API keys: the file that has their hashes, and tenants' salts."""

import hashlib
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.access.errors import InvalidApiKey
from penstock.access.exposure import Access
from penstock.access.keys import MAX_KEYS, Keyring, entry, new_key, only_key, parse_keys, read_keys
from penstock.access.tenants import EVERYBODY, Bounds, Level, Tenant, standing_of
from penstock.core.errors import ConfigurationError
from penstock.core.request import MAX_SALT_LENGTH, Standing

PLACE = Path("keys.toml")
HASH = hashlib.sha256(b"the key of somebody").hexdigest()
GOOD = f'[[key]]\nname = "a"\nsha256 = "{HASH}"\n'
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)

THREE = Level("key/alice", Bounds(max_concurrent_requests=3))


def test_a_file_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(
        "# Ours.\n"
        + entry("alice", "one")
        + "max_concurrent_requests = 3\n\n"
        + entry("b.o-b_2", "two", weight=2.5)
        + entry("carol", "three", weight=1)
    )
    keys = Keyring(read_keys(path))
    assert keys.names == ["alice", "b.o-b_2", "carol"] and bool(keys)
    assert keys.find(b"one") == Tenant(name="alice", levels=(THREE,)) == keys.tenant("alice")
    assert keys.find(b"two") == Tenant(name="b.o-b_2", weight=2.5)
    for wrong in (b"", b"on", b"one ", b"ONE", b"four", hashlib.sha256(b"one").hexdigest().encode(), b"x" * 100_000):
        with pytest.raises(InvalidApiKey, match="none of this server's"):
            keys.find(wrong)
    assert keys.tenant("") is None and keys.tenant("dave") is None


def test_without_keys_everybody_is_one_tenant() -> None:
    keys = Keyring()
    assert not keys and keys.names == []
    assert keys.tenant("") == EVERYBODY and keys.tenant("alice") is None
    with pytest.raises(InvalidApiKey):
        keys.find(b"")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "has another form"),
        ("key = []", "has no keys; `penstock key NAME --add keys.toml` adds one"),
        ("[[key", "is not valid TOML"),
        ("\udcff", "is not UTF-8"),
        ("[[keys]]\nname = 'a'", "unknown field `keys`"),
        ("[[key]]\nname = 'a'", "missing required field `sha256`"),
        (f"[[key]]\nsha256 = '{HASH}'", "missing required field `name`"),
        (GOOD + "key = 'x'", "unknown field `key`"),
        (GOOD + "weight = 'x'", "Expected `float`, got `str`"),
        (GOOD + "weight = true", "Expected `float`, got `bool`"),
        (GOOD + "weight = 0", r"key 1: weight is 0.0, outside 0.001..1000"),
        (GOOD + "weight = -1", "outside"),
        (GOOD + "weight = nan", "outside"),
        (GOOD + "weight = inf", "outside"),
        (GOOD + "weight = 1e-300", "outside"),
        (GOOD + "max_concurrent_requests = 0", "max_concurrent_requests is 0; leave it out, or give 1 to "),
        (GOOD + "max_concurrent_requests = 1.5", "Expected `int | null`, got `float`"),
        (GOOD.replace('"a"', '""'), "name must have 1 to 64"),
        (GOOD.replace('"a"', '"ü"'), "name must have 1 to 64"),
        (GOOD.replace('"a"', '"a\\nb"'), "name must have 1 to 64"),
        (GOOD.replace('"a"', f'"{"a" * 65}"'), "name must have 1 to 64"),
        (GOOD.replace(HASH, HASH[:-1]), "sha256 is not the 64 hexadecimal digits"),
        (GOOD.replace(HASH, HASH + "0"), "sha256 is not the 64 hexadecimal digits"),
        (GOOD + GOOD, "Two API keys have the name 'a'"),
        (GOOD + GOOD.replace('"a"', '"b"'), "'a' and 'b' have the same API key"),
        (GOOD * (MAX_KEYS + 1), f"There are {MAX_KEYS + 1} API keys; at most {MAX_KEYS}"),
        (GOOD + "#" * (1 << 20), "is longer than 1048576 bytes"),
    ],
)
def test_a_file_that_is_wrong(content: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Keyring(parse_keys(content.encode("utf-8", "surrogateescape"), PLACE))
    assert says in caught.value.message
    assert "\n" not in caught.value.message


def test_a_key_instead_of_its_hash_is_not_quoted() -> None:
    secret = "penstock-somebody-has-mistaken-this-for-a-hash"
    with pytest.raises(ConfigurationError) as caught:
        parse_keys(GOOD.replace(HASH, secret).encode(), PLACE)
    assert "somebody" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_keys(tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_keys(tmp_path)


def test_one_key_without_a_file() -> None:
    keys = Keyring([only_key("a secret".replace(" ", "-"))])
    found = keys.find(b"a-secret")
    assert found.name == "default"
    for secret in ("", " ", "a b", "ü" * 30, "a\n", "a\x00", "x" * 513):
        with pytest.raises(ConfigurationError, match="visible ASCII characters") as caught:
            only_key(secret)
        assert len(secret) < 3 or secret not in caught.value.message


def test_keys_are_new_and_long() -> None:
    keys = {new_key() for _ in range(1000)}
    assert len(keys) == 1000
    # 32 random bytes behind the prefix.
    assert {len(key) for key in keys} == {len("penstock-") + 43}
    assert all(key.startswith("penstock-") for key in keys)


@given(NAMES, st.none() | st.floats(0.001, 1000))
def test_entries_are_read_as_they_were_meant(name: str, weight: float | None) -> None:
    key = new_key()
    text = entry(name, key, weight)
    assert key not in text and list(tomllib.loads(text)) == ["key"]
    found = Keyring(parse_keys(text.encode(), PLACE)).find(key.encode())
    assert found == Tenant(name=name, weight=1.0 if weight is None else weight)


@given(st.text(max_size=70))
def test_no_name_breaks_out_of_its_entry(name: str) -> None:
    try:
        text = entry(name, "k")
    except ConfigurationError:
        return
    assert [key.tenant.name for key in parse_keys(text.encode(), PLACE)] == [name]


def asked(salt: str) -> Standing:
    return Standing(priority=3, cache_salt=salt)


SALTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=MAX_SALT_LENGTH)


@given(NAMES, SALTS, NAMES, SALTS)
def test_two_tenants_never_have_one_salt(name: str, salt: str, other_name: str, other_salt: str) -> None:
    first = standing_of(Tenant(name=name, weight=2.0), asked(salt))
    second = standing_of(Tenant(name=other_name), asked(other_salt))
    assert (first.tenant, first.weight, first.priority) == (name, 2.0, 3)
    assert (first.cache_salt == second.cache_salt) == ((name, salt) == (other_name, other_salt))
    assert 0 < len(first.cache_salt) <= MAX_SALT_LENGTH
    # Nobody can ask for another's: what a client sends is never used as it is.
    assert standing_of(Tenant(name=other_name), asked(first.cache_salt)).cache_salt != first.cache_salt


@given(SALTS)
def test_without_keys_a_standing_is_as_it_was(salt: str) -> None:
    given_standing = asked(salt)
    assert standing_of(EVERYBODY, given_standing) is given_standing


def test_bytes_that_a_key_may_store() -> None:
    (key,) = parse_keys(entry("alice", "x" * 20, max_stored_bytes=5_000).encode(), Path("keys.toml"))
    assert key.tenant.max_stored_bytes == 5_000
    for most in (0, -1, 2**63):
        with pytest.raises(ConfigurationError, match="max_stored_bytes"):
            entry("alice", "x" * 20, max_stored_bytes=most)
    text = entry("alice", "x" * 20) + "max_stored_bytes = 0\n"
    with pytest.raises(ConfigurationError, match="key 1: max_stored_bytes is 0"):
        parse_keys(text.encode(), Path("keys.toml"))


def test_how_long_answers_to_a_key_are_kept() -> None:
    (key,) = parse_keys(entry("alice", "x" * 20, limits={"answer_cache_seconds": 60}).encode(), PLACE)
    assert key.tenant.answer_cache_seconds == 60
    with pytest.raises(ConfigurationError, match="`penstock gateway` keeps answers, a replica does not"):
        Access(Keyring([key])).check_counted()
    for more in ("answer_cache_seconds = -1\n", "answer_cache_seconds = 2592001\n"):
        with pytest.raises(ConfigurationError, match="key 1: answer_cache_seconds is .*; give 0 to 2592000"):
            parse_keys((entry("alice", "x" * 20) + more).encode(), PLACE)
    with pytest.raises(ConfigurationError, match="with for_others, limits are those of the tenants"):
        parse_keys((entry("all", "x" * 20, for_others=True) + "answer_cache_seconds = 5\n").encode(), PLACE)


def test_a_file_with_a_byte_order_mark_and_one_of_another_encoding() -> None:
    assert parse_keys(b"\xef\xbb\xbf" + GOOD.encode(), PLACE) == parse_keys(GOOD.encode(), PLACE)
    with pytest.raises(ConfigurationError, match="UTF-16; save it as UTF-8"):
        parse_keys(GOOD.encode("utf-16"), PLACE)
