"""Codes of languages, and their names."""

import pytest

from penstock.text.language_names import name_of, short_code


@pytest.mark.parametrize(
    ("code", "short", "name"),
    [
        ("en", "en", "English"),
        ("eng_Latn", "en", "English"),
        ("eng", "en", "English"),
        ("en_XX", "en", "English"),
        ("zho_Hans", "zh", "Chinese"),
        ("zho_Hant", "zt", "Chinese (traditional)"),
        ("zho", "zh", "Chinese"),
        ("ceb_Latn", "ceb", "Cebuano"),
        ("gle_Latn", "ga", "Irish"),
        ("xyz_Latn", "xyz_Latn", "xyz_Latn"),
    ],
)
def test_codes(code: str, short: str, name: str) -> None:
    assert (short_code(code), name_of(short_code(code))) == (short, name)
