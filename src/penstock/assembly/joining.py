"""A server that joins gateways."""

import os
import socket
from contextlib import AbstractAsyncContextManager

from penstock.assembly.server_options import JoinOptions
from penstock.core.errors import ConfigurationError
from penstock.gateway.joining import VARIABLE, joined
from penstock.gateway.pool import Address, address_of


def join_options(gateways: tuple[str, ...], advertised: str | None) -> JoinOptions:
    """As a user asks for it. Raises ConfigurationError for what is no URL, and where there is no token."""
    for url in (*gateways, *([] if advertised is None else [advertised])):
        address_of(url)
    token = os.environ.get(VARIABLE, "")
    if gateways and not token:
        raise ConfigurationError(f"--join needs the gateway's token in the environment, as {VARIABLE}.")
    if advertised is not None and not gateways:
        raise ConfigurationError("--advertise says where gateways reach this server; name one with --join.")
    return JoinOptions(gateways=gateways, advertised=advertised, token=token)


def joining(
    options: JoinOptions, listener: socket.socket, root_path: str, *, encrypted: bool
) -> AbstractAsyncContextManager[None]:
    """Be a replica of gateways while the block runs, at the address that the server listens on."""
    host, port = listener.getsockname()[:2]
    own = Address(host, port, encrypted, root_path) if options.advertised is None else address_of(options.advertised)
    return joined(options.gateways, own, options.token)
