"""Regular English inflections, in spelling and in syllables."""

VOWELS = "aeiou"
SIBILANT_ENDINGS = ("s", "x", "z", "ch", "sh", "ce", "se", "ze", "ge")


def _after_sibilant(word: str) -> int:
    return 1 if word.endswith(SIBILANT_ENDINGS) else 0


def _doubles(word: str, syllables: int) -> bool:
    """Whether the last consonant doubles before -ing and -ed: one syllable, consonant, one vowel, consonant."""
    if syllables != 1 or len(word) < 3:
        return False
    before, vowel, last = tuple(word[-3:])
    return vowel in VOWELS and last not in VOWELS + "wxy" and (before not in VOWELS or word[-4:-2] == "qu")


def add_s(word: str, syllables: int) -> tuple[str, int]:
    """The regular plural of a noun, or third person of a verb, with its syllables."""
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return word + "es", syllables + 1
    if word.endswith("y") and word[-2] not in VOWELS:
        return word[:-1] + "ies", syllables
    return word + "s", syllables + _after_sibilant(word)


def third_person(word: str, syllables: int) -> tuple[str, int]:
    """The third person singular: as a plural, but "goes"."""
    return (word + "es", syllables) if word.endswith("o") else add_s(word, syllables)


def add_ing(word: str, syllables: int) -> tuple[str, int]:
    """The present participle with its syllables."""
    if word.endswith("e") and not word.endswith(("ee", "oe", "ye")):
        return word[:-1] + "ing", syllables + 1
    if _doubles(word, syllables):
        return word + word[-1] + "ing", syllables + 1
    return word + "ing", syllables + 1


def add_ed(word: str, syllables: int) -> tuple[str, int]:
    """The regular past tense with its syllables."""
    more = 1 if word.endswith(("t", "d", "te", "de")) else 0
    if word.endswith("e"):
        return word + "d", syllables + more
    if word.endswith("y") and word[-2] not in VOWELS:
        return word[:-1] + "ied", syllables
    if _doubles(word, syllables):
        return word + word[-1] + "ed", syllables + more
    return word + "ed", syllables + more
