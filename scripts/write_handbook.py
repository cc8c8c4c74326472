"""Writes what the handbook's examples print, after coefficients or prices have changed. Read the difference."""

import contextlib
import doctest
import io
import re
from pathlib import Path

PAGES = Path(__file__).parents[1] / "docs" / "handbook"


def rewritten(text: str) -> str:
    """A page whose examples stand before what they print now."""
    # The marks of blocks end an output as an empty line does.
    plain = re.sub(r"^```.*$", "", text, flags=re.MULTILINE)
    examples = [each for each in doctest.DocTestParser().parse(plain) if isinstance(each, doctest.Example)]
    lines, names = text.splitlines(keepends=True), dict[str, object]()
    printed = []
    for example in examples:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(example.source, "<page>", "single"), names)  # noqa: S102 - the page is ours
        printed.append(out.getvalue())
    # From the end on, so that places of earlier lines stay what they are.
    for example, shown in reversed(list(zip(examples, printed, strict=True))):
        begin = example.lineno + example.source.count("\n")
        lines[begin : begin + example.want.count("\n")] = [f"{line}\n" for line in shown.splitlines()]
    return "".join(lines)


def main() -> None:
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text()
        page.write_text(rewritten(text))
        print(page.name, "is the same" if page.read_text() == text else "has changed")


if __name__ == "__main__":
    main()
