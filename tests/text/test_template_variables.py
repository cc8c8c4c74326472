"""Which names a chat template can be told: those it reads from outside, and none of its own."""

import pytest

from penstock.text.chat_template import ChatTemplate
from support.chat_templates import TEMPLATES


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (
            "{{ shout }}{% if enable_thinking is defined and enable_thinking %}x{% endif %}",
            {"shout", "enable_thinking"},
        ),
        # Set in one branch only, Jinja counts it as read from outside.
        ("{% if messages %}{% set inner = 1 %}{% endif %}{{ inner }}", set()),
        ("{% if messages %}{% set inner = 1 %}{% endif %}{% if inner is defined %}{{ inner }}{% endif %}", set()),
        ("{% if messages %}{% set inner %}text{% endset %}{% endif %}{{ inner }}", set()),
        ("{% if messages %}{% set a, b = messages %}{% endif %}{{ a }}{{ b }}", set()),
        ("{% if messages %}{% macro inner() %}{% endmacro %}{% endif %}{{ inner() }}", set()),
        ("{% for inner in messages %}{% set other = inner %}{{ other }}{% endfor %}", set()),
        # What has a default can be told.
        ("{% if not date is defined %}{% set date = '26 Jul' %}{% endif %}{{ date }}", {"date"}),
        ("{% if date is undefined %}{% set date = '26 Jul' %}{% endif %}{{ date }}", {"date"}),
        ("{% if messages %}{% set date = date | default('26 Jul') %}{% endif %}{{ date }}", {"date"}),
        ("{% if messages %}{% set date = date if date is defined else 'now' %}{% endif %}{{ date }}", {"date"}),
        # A name that an argument of a macro has too.
        ("{% macro turn(mood) %}{{ mood }}{% endmacro %}{{ turn(1) }}{{ mood }}", {"mood"}),
        ("{{ messages }}{{ tools }}{{ documents }}{{ raise_exception }}{{ namespace }}", set()),
    ],
)
def test_names_from_outside(source: str, names: set[str]) -> None:
    assert ChatTemplate(source).variables == names


def test_both_templates_count() -> None:
    assert ChatTemplate("{{ one }}", tool_use="{{ two }}").variables == {"one", "two"}


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_in_the_manner_of_published_ones(name: str) -> None:
    settable = {each for each in ChatTemplate(TEMPLATES[name]).variables if not each.endswith("_token")}
    assert settable == ({"date_string"} if name == "llama 3.1" else set())
