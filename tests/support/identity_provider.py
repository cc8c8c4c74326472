"""An identity provider as a test wants it: its two documents over HTTP, and tokens that it has signed."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from joserfc import jwt
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey

from penstock.tenancy.oidc import DISCOVERY
from penstock.tenancy.oidc_options import IssuerOptions
from support.waiting import PATIENCE

NOW = 1_000_000
RSA = RSAKey.generate_key(2048, {"kid": "rsa"}, auto_kid=False)
EC = ECKey.generate_key("P-256", {"kid": "ec"}, auto_kid=False)
ED = OKPKey.generate_key("Ed25519", {"kid": "ed"}, auto_kid=False)
STRANGER = RSAKey.generate_key(2048, {"kid": "rsa"}, auto_kid=False)


class Clock:
    """A clock that stands until it is set."""

    now = float(NOW)

    def __call__(self) -> float:
        return self.now


class Provider:
    """An identity provider's two documents, as a test wants them."""

    def __init__(self) -> None:
        self.keys: list[Key] = [RSA, EC, ED]
        self.issuer: str | None = None
        self.broken = ""
        self.asked = 0
        self.silent = threading.Event()
        self.silent.set()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.asked += 1
                provider.silent.wait(PATIENCE)
                content = provider.document(self.path)
                self.send_response(200)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        """Nothing answers any more."""
        self.silent.set()
        self.server.shutdown()
        self.server.server_close()

    def document(self, path: str) -> bytes:
        """What is there."""
        if self.broken:
            return self.broken.encode()
        if path == DISCOVERY:
            return json.dumps({"issuer": self.issuer or self.url, "jwks_uri": f"{self.url}/keys"}).encode()
        public = [{**key.as_dict(private=key.key_type == "oct"), "use": "sig"} for key in self.keys]
        return json.dumps({"keys": public}).encode()

    def options(self, **fields: Any) -> IssuerOptions:
        """For a gateway."""
        return IssuerOptions(**{"issuer": self.url, "audience": "penstock", **fields}).check()

    def token(self, key: Key = RSA, alg: str = "RS256", head: dict[str, Any] | None = None, **claims: Any) -> bytes:
        """As the provider issues them; None leaves a claim out."""
        plain = {"iss": self.url, "aud": "penstock", "sub": "alice", "exp": NOW + 60, "penstock_project": "acme.web"}
        said = {name: value for name, value in {**plain, **claims}.items() if value is not None}
        return jwt.encode({"alg": alg, "kid": key.kid, **(head or {})}, said, key, algorithms=[alg]).encode()
