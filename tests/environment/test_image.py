"""What the Dockerfile names is there: what it copies is sent to the builder, and the package reads what it sets."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def test_what_is_copied_is_there_and_sent_to_the_builder() -> None:
    lines = re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
    copied = {source for line in lines for source in line.split()[:-1]}
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == sent
    assert [source for source in copied if not (ROOT / source).exists()] == []


def test_the_package_reads_the_variables_that_the_image_sets() -> None:
    names = set(re.findall(r"\bPENSTOCK_[A-Z_]+(?==)", DOCKERFILE))
    assert names == {"PENSTOCK_CACHE", "PENSTOCK_DATA"}
    read = "".join(path.read_text() for path in (ROOT / "src" / "penstock").rglob("*.py"))
    assert [name for name in names if f'"{name}"' not in read] == []
