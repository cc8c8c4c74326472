"""Chat templates that fail, and bounds on hostile ones."""

import pytest

from penstock.core.errors import RequestError, TokenizerError
from penstock.text import template_budget
from penstock.text.chat_template import ChatTemplate
from penstock.text.template_budget import TakesLong, in_a_moment


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('Only user roles') }}", "Only user roles"),
        ("{{ messages[0]['content'] + 1 }}", "TypeError"),
        ("{{ nothing.here }}", "nothing"),
        ("{{ messages.append(1) }}", "unsafe|not safely|callable"),
        ("{{ ''.__class__.__mro__ }}", "__class__|unsafe"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe|__init__"),
    ],
)
def test_a_failing_template_refuses_the_request(source: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        ChatTemplate(source).render([{"role": "user", "content": "x"}], special_tokens={})
    assert caught.value.param == "messages"


# A list that holds the same list twice, and so on: little memory, and text of 2^60 characters.
DOUBLING = "{% set x = namespace(v=[1]) %}{% for i in range(60) %}{% set x.v = [x.v, x.v] %}{% endfor %}"


# Values that nobody forgets.
KEEPING = "{% set x = namespace(v=[]) %}{% for i in range(1000) %}"


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'x' * 1000000000 }}",
        "{{ 1000000000 * [0] }}",
        "{{ 10 ** (10 ** 9) }}",
        "{% set x = namespace(v=3) %}{% for i in range(60) %}{% set x.v = x.v * x.v %}{% endfor %}",
        "{{ '%1000000000d' % 1 }}",
        "{% set x = namespace(v='x') %}{% for i in range(60) %}{% set x.v = x.v + x.v %}{% endfor %}",
        "{% set x = namespace(v='x') %}{% for i in range(60) %}{% set x.v = x.v ~ x.v %}{% endfor %}",
        "{% for i in range(90000) %}{{ messages[0].content * 1000 }}{% endfor %}",
        "{{ range(10 ** 9) }}",
        "{{ 'x' | center(1000000000) }}",
        "{{ 'x'.ljust(10 ** 9) }}",
        "{{ 'x'['rjust'](10 ** 9) }}",
        "{{ 'x'.center(10 ** 9) }}",
        "{{ 'x'.zfill(10 ** 9) }}",
        "{{ '\t'.expandtabs(10 ** 9) }}",
        "{{ ('x' * 4000).translate({120: 'y' * 4000}) }}",
        "{{ (5).to_bytes(10 ** 9, 'big') }}",
        "{{ '{:1000000000}'.format('x') }}",
        "{{ '{:{w}}'.format('x', w=10 ** 9) }}",
        "{{ '{x:1000000000}'.format_map({'x': 1}) }}",
        "{{ ('{0}' * 4000).format('x' * 4000) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ ('%(a)s' * 4000) % {'a': 'x' * 4000} }}",
        "{{ ('x' * 4000).replace('x', 'y' * 4000) }}",
        "{{ ('x' * 4000).replace('', 'y' * 4000) }}",
        "{{ ('x' * 4000) | replace('x', 'y' * 4000) }}",
        "{{ ('x' * 4000).join('y' * 4000) }}",
        "{{ range(4000) | join('y' * 4000) }}",
        "{{ ('\n' * 4000) | indent(4000, blank=true) }}",
        "{{ 'x\ny' | indent(10 ** 9) }}",
        "{{ 'x y' | wordwrap(1, wrapstring='z' * 1000000) }}",
        "{{ [1] | batch(10 ** 9, 0) | list }}",
        "{{ [1] | slice(10 ** 9) | list }}",
        "{{ [[[1]]] | tojson(indent=10 ** 9) }}",
        "{{ [1] | tojson(indent='x' * 1000000) }}",
        "{{ strftime_now('%1000000000d') }}",
        "{% set a = 'x' * 1000000 %}{% set b = a ~ a ~ a ~ a ~ a ~ a %}",
        DOUBLING + "{{ x.v }}",
        DOUBLING + "{{ x.v | string | length }}",
        DOUBLING + "{{ x.v | tojson }}",
        DOUBLING + "{{ [x.v] | join }}",
        DOUBLING + "{{ '%s' % x.v }}",
        DOUBLING + "{% set y = 'a' ~ x.v %}",
        DOUBLING + "{% set y = '{}'.format(x.v) %}",
        DOUBLING + "{{ {'a': x.v}.values() }}",
        DOUBLING + "{{ x }}",
        DOUBLING + "{{ x.v == [x.v] }}",
        DOUBLING + "{{ x.v in [[x.v]] }}",
        DOUBLING + "{{ x.v is eq([x.v]) }}",
        DOUBLING + "{{ [x.v, x.v] | sort | length }}",
        DOUBLING + "{% set y = {'a': x.v} %}",
        "{{ (1,) + (1,) }}",
        "{{ (1,) * 2 }}",
        "{{ range(99999) | map('string') | list | length }}",
        "{{ ([range(99999)] * 20) | map('list') | list | length }}",
        "{{ [1] * 20000 }}",
        "{{ ('a ' * 30000).split() | length }}",
        "{{ ('a ' * 30000) | wordcount }}",
        KEEPING + "{% set x.v = x.v + ['a' * 100000] %}{% endfor %}",
        KEEPING + "{% set x.v = x.v + ['a' * 50000 ~ i] %}{% endfor %}",
        KEEPING + "{% set x.v = x.v + [('a' * 50000)[:40000]] %}{% endfor %}",
        KEEPING + "{% set x.v = x.v + [('a' * 50000).upper()] %}{% endfor %}",
        KEEPING + "{% set x.v = dict(a=x.v, b='a' * 50000 ~ i) %}{% endfor %}",
        "{% set x %}{% for i in range(19000) %}" + "x" * 1000 + "{% endfor %}{% endset %}",
    ],
)
def test_bombs_are_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_budget, "MAX_STEPS", 20_000)
    monkeypatch.setattr(template_budget, "MAX_OUTPUT", 1 << 20)
    monkeypatch.setattr(template_budget, "MAX_ITEMS", 10_000)
    monkeypatch.setattr(template_budget, "MAX_MADE", 10 << 20)
    with pytest.raises((RequestError, TokenizerError)):
        ChatTemplate(source).render([{"role": "user", "content": "x"}], special_tokens={})


def test_a_slow_template_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_budget, "MAX_SECONDS", 0.0)
    with pytest.raises(RequestError, match="longer than 0 seconds"):
        ChatTemplate("{% for i in range(1000) %}{% endfor %}").render([], special_tokens={})


def test_where_others_wait_a_rendering_has_a_moment() -> None:
    template = ChatTemplate("{% for i in range(99999) %}{% for j in range(10) %}{% endfor %}{% endfor %}done")
    with pytest.raises(TakesLong), in_a_moment():
        template.render([], special_tokens={})
    assert template.render([], special_tokens={}) == "done"


@pytest.mark.parametrize("source", ["{% for %}", "{{ unknown | nofilter }}", "{% for x in y recursive %}{% endfor %}"])
def test_a_template_that_does_not_compile_is_refused(source: str) -> None:
    with pytest.raises(TokenizerError, match="cannot be compiled"):
        ChatTemplate(source)
