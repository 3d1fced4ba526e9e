"""The sockets that a server listens on, taken before the model loads.

Knows no HTTP. Invariant: a Unix socket's file is there as long as the Listener is open.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat

from vllm_lite.config.server import ServerConfig
from vllm_lite.errors import UsageError
from vllm_lite.server.process.tls import tls_context


class Listener:
    """Bound sockets that do not listen yet: clients are refused until the server is ready.

    There is one for each process of the server, the first of them this process's own. The
    kernel spreads connections to a port over its sockets; processes share a Unix socket.
    """

    def __init__(self, server_config: ServerConfig) -> None:
        """Raises UsageError where the address, or what TLS needs, cannot be had."""
        # None: plain HTTP.
        self.tls = tls_context(server_config)
        self._path = server_config.uds
        count = server_config.api_server_count
        if self._path is not None:
            self.socket = _bind_unix(self._path)
            self.sockets = [self.socket, *(self.socket.dup() for _ in range(count - 1))]
            self.url = f"unix:{self._path}"
            return
        self.sockets = _bind_tcp(server_config.host, server_config.port, count)
        self.socket = self.sockets[0]
        scheme = "http" if self.tls is None else "https"
        host = server_config.host or "0.0.0.0"
        host = f"[{host}]" if ":" in host else host
        self.url = f"{scheme}://{host}:{self.socket.getsockname()[1]}"

    @classmethod
    def inherited(cls, server_config: ServerConfig, descriptor: int, url: str) -> Listener:
        """Of a process that another one gave its socket; the address stays the other's."""
        listener = cls.__new__(cls)
        listener.tls = tls_context(server_config)
        listener.socket = socket.socket(fileno=descriptor)
        listener.sockets = [listener.socket]
        listener.url = url
        listener._path = None
        return listener

    def close(self) -> None:
        """Free the address; a Unix socket's file goes with it."""
        for one in self.sockets:
            one.close()
        if self._path is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            self._path = None


def _bind_tcp(host: str | None, port: int, count: int) -> list[socket.socket]:
    """So many sockets of one port."""
    try:
        found = socket.getaddrinfo(
            host or "0.0.0.0", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise UsageError(f"--host {host}: no such address ({error.strerror})") from None
    family, _, _, _, address = found[0]
    sockets: list[socket.socket] = []
    try:
        if count > 1:
            # Another server's sockets would share the port as gladly as this one's.
            _bind(family, address, share=False).close()
        for _ in range(count):
            sockets.append(_bind(family, address, share=count > 1))
            address = sockets[0].getsockname()
        # Two sockets may be bound to one port while neither listens; asking here would let
        # clients in too early, so a second server that starts at the same moment fails later.
    except OSError as error:
        for one in sockets:
            one.close()
        raise UsageError(
            f"Port {port} of {address[0]} cannot be used: {error.strerror}; "
            "choose another with --port or --host"
        ) from None
    return sockets


def _bind(family: int, address: tuple[object, ...] | str, *, share: bool) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if share:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.bind(address)
    except OSError:
        one.close()
        raise
    return one


def _bind_unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        listener.bind(path)
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise UsageError(f"--uds {path} cannot be used: {reason}; choose another path") from None
    return listener


def _remove_stale(path: str) -> None:
    """Remove the socket that a killed server left behind; raises OSError if one is served."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(0, "a file that is no socket is in its place")
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.connect(path)
    except ConnectionRefusedError:
        os.unlink(path)
    else:
        raise OSError(0, "another server listens there")
    finally:
        probe.close()
