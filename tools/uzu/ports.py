"""TCP ports: whether one is free, and finding free ones."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from uzu.errors import UsageError


def check_port(host: str, port: int, option: str) -> None:
    """Make sure that something can listen there.

    Raises:
        UsageError: the port is taken, or the address is not one of this machine.

    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise UsageError(f"--host: {host!r} is not an address of this machine ({error.strerror})") from error
    for family, kind, protocol, _, address in addresses:
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                listener.bind(address)
                listener.listen(1)
            except OSError as error:
                raise UsageError(
                    f"{option}: cannot listen on {host}:{port} ({error.strerror}); choose another port, or "
                    "stop what uses this one"
                ) from error


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Different ports that nobody listens on right now."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind((host, 0))
        return [int(listener.getsockname()[1]) for listener in listeners]


def reachable(host: str) -> str:
    """An address, as URLs write it, at which a client on this machine reaches a listener on `host`."""
    if host in ("0.0.0.0", ""):  # noqa: S104 -- compared, not bound
        return "127.0.0.1"
    if host == "::":
        return "[::1]"
    return f"[{host}]" if ":" in host else host
