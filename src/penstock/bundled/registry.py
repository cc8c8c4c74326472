"""Which models come with the package: their names stand wherever a model is asked for."""

from dataclasses import dataclass
from pathlib import Path

from penstock.core.errors import ModelFileError

FOLDER = Path(__file__).parent / "models"
DEFAULT = "haiku"
# Which model drafts for which.
DRAFTS = {DEFAULT: "haiku-draft"}

_SUMMARIES = {
    DEFAULT: "writes haiku, chats a little, and answers in JSON",
    "haiku-draft": "guesses ahead what haiku would write",
}


@dataclass(frozen=True, slots=True)
class BundledModel:
    """A model of the package.

    Attributes:
        name: stands for the model on the command line, in Python and in the API.
        directory: in Hugging Face's layout, like any other model's.
        summary: what it can do, to follow its name.
    """

    name: str
    directory: Path
    summary: str

    def installed(self) -> Path:
        """The directory; raises ModelFileError where this installation lacks it."""
        if not self.directory.is_dir():
            raise ModelFileError(
                f"The bundled model {self.name} is missing from this installation ({self.directory} does not exist); "
                "install Penstock again, or give another model."
            )
        return self.directory


def bundled_models(folder: Path = FOLDER) -> tuple[BundledModel, ...]:
    """All of them, the default first."""
    return tuple(BundledModel(name, folder / name, summary) for name, summary in _SUMMARIES.items())


def find_bundled(name: str) -> BundledModel | None:
    """The model of exactly this name, or None."""
    return next((model for model in bundled_models() if model.name == name), None)
