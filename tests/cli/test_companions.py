"""`--with 'MODEL --option value'`."""

import pytest

from penstock.cli.companions import companions
from penstock.core.errors import ConfigurationError


def test_options_stand_behind_the_model() -> None:
    first, second = companions(
        [
            "some/embedder --quantization int8 --served-model-name e --max-model-len 128",
            "'a folder' --kv-cache-memory 2GiB",
        ]
    )
    assert first.engine.model == "some/embedder" and first.served.names == ("e",)
    assert (first.engine.loading.quantization, first.engine.batch.max_model_len) == ("int8", 128)
    assert second.engine.model == "a folder" and second.engine.cache.kv_cache_memory == 2 << 30
    assert second.served.names == () and second.served.parsers == ("auto", "auto")
    assert companions(None) == ()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "has no model before its options"),
        ("--quantization int8", "has no model before its options"),
        ("model 'open", "cannot be read: No closing quotation"),
        ("model --port 8000", "No such option: --port; behind a model stand options of its engine"),
        ("model another", "unexpected extra argument"),
        ("model --max-model-len many", "'--max-model-len': Input should be a valid integer"),
        ("model --quantization", "requires an argument"),
        ("model --with other", "No such option: --with"),
        ("model --kv-cache-memory much", "--kv-cache-memory"),
        ("model --help", "No such option"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(given: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        companions([given])
    assert "\n" not in str(caught.value)
