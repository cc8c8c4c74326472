"""TLS: a certificate and its key, checked at the start as the first client would."""

import ssl
import time
from pathlib import Path

import msgspec

from penstock.core.config import Reason
from penstock.core.errors import ConfigurationError

# Seconds that a client has for its TLS handshake after it has connected, and for its TLS farewell at the end.
HANDSHAKE_SECONDS = 10.0
SHUTDOWN_SECONDS = 5.0
SOON_SECONDS = 14 * 24 * 3600
_NOT_YET_VALID, _EXPIRED = 9, 10


class Tls(msgspec.Struct, frozen=True):
    """What connections are encrypted with; `reason` tells of the certificate."""

    context: ssl.SSLContext
    reason: Reason


NO_TLS = Reason("tls", "off", "no certificate is given: texts and keys travel in the clear")


def choose_tls(tls_certificate: Path | None, tls_key: Path | None) -> Tls | None:
    """TLS as asked for; None without. Raises ConfigurationError."""
    if tls_certificate is None and tls_key is None:
        return None
    if tls_certificate is None or tls_key is None:
        raise ConfigurationError("--tls-certificate and --tls-key need each other; give both, or none.")
    return load_tls(tls_certificate, tls_key)


def load_tls(certificate: Path, key: Path) -> Tls:
    """Raises ConfigurationError where the files cannot be used together, or now."""
    for option, path in (("--tls-certificate", certificate), ("--tls-key", key)):
        try:
            path.open("rb").close()
        except OSError as error:
            raise ConfigurationError(f"{option} {path} cannot be read ({error.strerror}).") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        # Without an answer of ours, OpenSSL would ask on the terminal.
        context.load_cert_chain(certificate, key, password=_no_password)
    except _Encrypted as error:
        raise ConfigurationError(f"--tls-key {key} is encrypted; give one that is not.") from error
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigurationError(f"--tls-key {key} is not the key of --tls-certificate {certificate}.") from error
        raise ConfigurationError(
            f"--tls-certificate {certificate} and --tls-key {key} are not a certificate (with its chain) and a private "
            "key in PEM form that this OpenSSL takes"
            + (f" ({error.reason.replace('_', ' ').lower()})." if error.reason else ".")
        ) from error
    return Tls(context, _reason(certificate, _ends(certificate, context)))


class _Encrypted(Exception):
    """A key needs a password."""


def _no_password() -> str:
    raise _Encrypted


def _ends(certificate: Path, context: ssl.SSLContext) -> str:
    """Until when the certificate is valid, which a client in memory finds out. Raises ConfigurationError."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(certificate)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours, theirs = context.wrap_bio(up, down, server_side=True), client.wrap_bio(down, up)
    for _ in range(8):
        for side in (theirs, ours):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLCertVerificationError as error:
                if error.verify_code in (_EXPIRED, _NOT_YET_VALID):
                    what = "has expired" if error.verify_code == _EXPIRED else "is not valid yet"
                    raise ConfigurationError(
                        f"--tls-certificate {certificate} {what}; give one that is valid."
                    ) from error
                # Clients have their own idea of whom to trust.
                return ""
            except ssl.SSLError:
                return ""
    found = theirs.getpeercert()
    return str(found["notAfter"]) if found else ""


def _reason(certificate: Path, ends: str) -> Reason:
    if not ends:
        return Reason("tls", str(certificate), "TLS 1.2 and 1.3")
    left = ssl.cert_time_to_seconds(ends) - time.time()
    soon = ", which is soon" if left < SOON_SECONDS else ""
    return Reason("tls", str(certificate), f"TLS 1.2 and 1.3; the certificate is valid until {ends}{soon}")
