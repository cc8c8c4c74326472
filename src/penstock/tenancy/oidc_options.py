"""What a gateway is told of an identity provider."""

from urllib.parse import urlsplit

import msgspec

from penstock.core.checks import LONGEST_SECONDS
from penstock.core.errors import ConfigurationError

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class IssuerOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who issues tokens, and what they say.

    Attributes:
        issuer: URL that tokens have as `iss`.
        audience: that tokens must be for.
        project_claim: that names the project; its values are names of projects, or are in `projects`.
        projects: the project of each value.
        roles_claim: that lists roles; `admins` and `auditors` are those that may administer, and look.
        jwks: URL of the issuer's keys; None: where its configuration says that they are.
        leeway: seconds by which clocks may differ.
    """

    issuer: str
    audience: str
    project_claim: str = "penstock_project"
    projects: dict[str, str] = {}
    roles_claim: str = "roles"
    admins: tuple[str, ...] = ()
    auditors: tuple[str, ...] = ()
    jwks: str | None = None
    leeway: float = 30.0

    def check(self) -> "IssuerOptions":
        """Itself. Raises ConfigurationError for what cannot be."""
        for name, url in (("issuer", self.issuer), ("jwks", self.jwks)):
            parts = urlsplit(url or "https://host")
            if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
                raise ConfigurationError(f"oidc.{name} is {url!r}; it must be an https:// URL: it says whom to trust.")
        if not self.audience:
            raise ConfigurationError("oidc.audience is empty; name what tokens are for, as the provider knows it.")
        if not 0 <= self.leeway <= LONGEST_SECONDS:
            raise ConfigurationError(f"oidc.leeway is {self.leeway:g}; it must be seconds from 0.")
        return self
