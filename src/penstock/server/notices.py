"""Notices that a machine will be taken away soon, as those have that are cheap for it (spot, preemptible).

A file that someone else writes, or the service that a machine of a large cloud asks about itself, which is looked at
again and again:

- AWS: `spot/instance-action` of the instance metadata, about two minutes before
  (EC2 user guide, "Spot Instance interruption notices").
- Google Cloud: `instance/preempted` of the metadata server, 30 seconds before
  (Compute Engine, "Spot VMs", "Preemption process").
- Azure: an event `Preempt` of Scheduled Events, at least 30 seconds before
  ("Azure Metadata Service: Scheduled Events for Linux VMs").
"""

import asyncio
import contextlib
import json
import logging
import math
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from penstock.core.errors import ConfigurationError

logger = logging.getLogger("penstock.notices")

# What a notice leaves that says nothing of it.
USUAL_SECONDS = 30.0
# Between two looks.
LOOK_SECONDS = 2.0
# For the service to answer, which is on the same host.
_ANSWER_SECONDS = 2.0
_MOST_BYTES = 1 << 20
# No proxy is asked for what only the machine itself can see.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


@dataclass(frozen=True, slots=True)
class Notice:
    """The machine goes.

    Attributes:
        seconds: that are left.
        why: who says so, for people.
    """

    seconds: float
    why: str


# One look: a notice, None where there is none. Raises where that cannot be known, such as OSError and ValueError.
Look = Callable[[], Notice | None]


def look_of(source: str) -> Look:
    """How to look at a source: `aws`, `gcp`, `azure`, each perhaps with `:URL` of its service, or a file's path.

    Raises ConfigurationError for anything else.
    """
    name, _, url = source.partition(":")
    if name in _CLOUDS:
        usual, look = _CLOUDS[name]
        base = (url or usual).rstrip("/")
        if not base.startswith(("http://", "https://")):
            raise ConfigurationError(f"--notice {source!r} has no URL behind the colon, such as {usual}.")
        return lambda: look(base)
    path = Path(source)
    if not path.is_absolute():
        raise ConfigurationError(
            f"--notice {source!r} is neither {', '.join(_CLOUDS)} nor the absolute path of a file; name one of them."
        )
    return lambda: _in_file(path)


async def wait_for_notice(look: Look, look_seconds: float = LOOK_SECONDS) -> Notice:
    """Look again and again until there is a notice. A source that fails is told once, and asked on."""
    said = ""
    while True:
        try:
            notice = await asyncio.to_thread(look)
            said = ""
        except Exception as error:  # Whatever a service answers, it is looked at again.
            notice, why = None, str(error) or type(error).__name__
            if why != said:
                logger.warning("No notice can be seen: %s. It is looked for again and again.", why)
            said = why
        if notice is not None:
            return notice
        await asyncio.sleep(look_seconds)


def _in_file(path: Path) -> Notice | None:
    """A file that is there is a notice; it may say the seconds from its own time on."""
    try:
        with path.open("rb") as file:
            text, written = file.read(64).decode("utf-8", "replace").strip(), os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return None
    said = f"the file {path} is there"
    try:
        seconds = float(text or USUAL_SECONDS)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        seconds, said = USUAL_SECONDS, f"{said}, whose text is no number of seconds"
    # A clock that was set back gives no more time than was said.
    return Notice(max(0.0, min(seconds, seconds - (time.time() - written))), said)


def _on_aws(base: str) -> Notice | None:
    """Version 2 of the instance metadata service, whose answers need a token."""
    life = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    token = _ask(f"{base}/latest/api/token", life, method="PUT")
    told = _ask(f"{base}/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token or ""}, absent=404)
    if told is None:
        return None
    found = _object(told, "the instance metadata")
    action, at = found.get("action"), found.get("time")
    left = _left(datetime.fromisoformat(at)) if isinstance(at, str) else USUAL_SECONDS
    return Notice(left, f"AWS will {action} this instance")


def _on_gcp(base: str) -> Notice | None:
    told = (_ask(f"{base}/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"}) or "").strip()
    if told.upper() not in ("TRUE", "FALSE"):
        raise ValueError(f"the metadata server answered {told[:40]!r} instead of TRUE or FALSE")
    return Notice(USUAL_SECONDS, "Google Cloud preempts this instance") if told.upper() == "TRUE" else None


def _on_azure(base: str) -> Notice | None:
    """Events are told to all machines of a set; those of others do not count."""
    head = {"Metadata": "true"}
    told = _ask(f"{base}/metadata/scheduledevents?api-version=2020-07-01", head)
    events = _object(told or "", "Scheduled Events").get("Events", [])
    taken = [each for each in events if isinstance(each, dict) and each.get("EventType") == "Preempt"]
    if not taken:
        return None
    own = _ask(f"{base}/metadata/instance/compute/name?api-version=2021-02-01&format=text", head)
    for event in taken:
        if own in event.get("Resources", ()):
            at = str(event.get("NotBefore") or "")
            return Notice(_left(parsedate_to_datetime(at)) if at else USUAL_SECONDS, "Azure preempts this machine")
    return None


_CLOUDS: dict[str, tuple[str, Callable[[str], Notice | None]]] = {
    "aws": ("http://169.254.169.254", _on_aws),
    "gcp": ("http://metadata.google.internal", _on_gcp),
    "azure": ("http://169.254.169.254", _on_azure),
}


def _ask(url: str, headers: Mapping[str, str], *, method: str = "GET", absent: int | None = None) -> str | None:
    """What a service answers; None where the status is `absent`. Raises OSError."""
    request = urllib.request.Request(url, headers=dict(headers), method=method)
    try:
        with contextlib.closing(_open(request, timeout=_ANSWER_SECONDS)) as answer:
            return str(answer.read(_MOST_BYTES).decode("utf-8", "replace"))
    except urllib.error.HTTPError as error:
        with error:
            if error.code == absent:
                return None
        raise OSError(f"{url} answered with status {error.code}") from None
    except urllib.error.URLError as error:
        raise OSError(f"{url} cannot be reached ({error.reason})") from None


def _object(told: str, who: str) -> dict[str, Any]:
    try:
        found = json.loads(told)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"{who} answered {told[:40]!r}, which is no JSON object")
    return found


def _left(at: datetime) -> float:
    """Seconds until then; a time without a zone is UTC."""
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max(0.0, (at - datetime.now(UTC)).total_seconds())
