"""Which dialects a server speaks, and where."""

from penstock.api.anthropic.errors import DIALECT
from penstock.http.error_bodies import Dialects

DIALECTS = Dialects({"/v1/messages": DIALECT})
