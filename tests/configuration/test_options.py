"""Options in groups, under the names that users know."""

import pytest

from penstock.configuration.options import OPTIONS, EngineOptions

# What a reader takes in at once.
MOST_FIELDS = 20


def test_options_get_into_their_groups_under_users_names() -> None:
    options = EngineOptions.of("haiku", kv_cache_dtype="int8", speculative_depth=3, device="cuda", dtype="float32")
    assert options.model == "haiku" and options.cache.kv_cache_dtype == "int8" and options.speculation.depth == 3
    assert options.device.device == "cuda" and options.loading.dtype == "float32"
    assert EngineOptions.of("haiku") == EngineOptions(model="haiku")


def test_every_field_of_a_group_is_an_option() -> None:
    options = EngineOptions(model="haiku")
    groups = {name: getattr(options, name) for name in EngineOptions.__struct_fields__ if name != "model"}
    fields = {(name, field) for name, group in groups.items() for field in group.__struct_fields__}
    assert fields == set(OPTIONS.values()), "two fields with one name for users would hide one another"
    assert all(len(group.__struct_fields__) <= MOST_FIELDS for group in groups.values())


def test_an_option_that_there_is_not_is_named() -> None:
    with pytest.raises(TypeError, match="'max_tokens' is no option of an engine; there are tokenizer, dtype"):
        EngineOptions.of("haiku", max_tokens=3)
