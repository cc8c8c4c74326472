"""Who may ask LiteLLM's proxy in `../gateway_limits.py`, and how often.

Its own keys need a database of their own; its hook for other keys gives them the same limits, which the proxy's limiter
holds. The proxy finds this file beside its configuration.
"""

import os

from litellm.proxy._types import UserAPIKeyAuth

# What a key is called here, behind what all keys begin with, and those with limits.
_BEGINNING = "secret-of-"
_LIMITED = os.environ["LIMITED_KEYS"].split(",")


async def user_api_key_auth(request: object, api_key: str) -> UserAPIKeyAuth:
    """The key that a request has shown."""
    if not api_key.startswith(_BEGINNING):
        raise ValueError("There is no such key.")
    if api_key.removeprefix(_BEGINNING) not in _LIMITED:
        return UserAPIKeyAuth(api_key=api_key)
    return UserAPIKeyAuth(
        api_key=api_key,
        rpm_limit=int(os.environ["REQUESTS_PER_MINUTE"]),
        tpm_limit=int(os.environ["TOKENS_PER_MINUTE"]),
    )
