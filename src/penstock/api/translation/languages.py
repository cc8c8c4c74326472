"""Languages of a model, as clients of LibreTranslate know them: two letters where there are two."""

from collections.abc import Iterator

from penstock.api.translation.schema import Language
from penstock.core.errors import InvalidParameter
from penstock.core.sourced import Sourced
from penstock.text.language_names import name_of, short_code

_AUTOMATIC = "auto"


def languages_of(sourced: Sourced | None) -> list[Language]:
    """Those that a model translates from, each with those that it translates into."""
    if sourced is None:
        return []
    if sourced.languages:
        codes = {short_code(code): None for code in sourced.languages}
        return [Language(code, name_of(code), [other for other in codes if other != code]) for code in codes]
    targets: dict[str, list[str]] = {}
    for source, target in sourced.pairs:
        targets.setdefault(source, []).append(target)
    return [Language(code, name_of(code), found) for code, found in targets.items()]


def language_of(code: str, sourced: Sourced, param: str) -> str:
    """The model's own code of a language. Raises InvalidParameter where the model has no token for it."""
    for known in sourced.languages:
        if code in (known, short_code(known)):
            return known
    raise _unknown(param, code, [short_code(each) for each in sourced.languages])


def pair_of(source: str, target: str, sourced: Sourced) -> tuple[str, str]:
    """A pair of languages of a model that has no tokens for them. Raises InvalidParameter where it is no such pair."""
    pair = short_code(source), short_code(target)
    if pair in sourced.pairs:
        return pair
    sources = list(dict.fromkeys(each for each, _ in sourced.pairs))
    if pair[0] not in sources:
        raise _unknown("source", source, sources)
    raise _unknown("target", target, [each for other, each in sourced.pairs if other == pair[0]])


def check_named(source: str) -> None:
    """Raise InvalidParameter where the language of a text is left to be found out."""
    if source == _AUTOMATIC:
        raise InvalidParameter("source", "languages are not detected here; say which one the text is in.")


def _unknown(param: str, code: str, known: list[str]) -> InvalidParameter:
    return InvalidParameter(param, f"{code[:40]!r} is not one of this model's languages, {', '.join(_some(known))}.")


def _some(codes: list[str]) -> Iterator[str]:
    """The first of them; a list of two hundred is no sentence."""
    yield from codes[:20]
    if len(codes) > 20:
        yield f"and {len(codes) - 20} more (GET /languages has all)"
