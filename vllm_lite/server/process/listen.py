"""The sockets that a server listens on, taken before the model loads, and their TLS.

Knows no HTTP. Invariants: a Unix socket's file is there as long as the Listener is open; a TLS
context always holds a certificate and the key that fits it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import stat

from vllm_lite.config.server import ServerConfig
from vllm_lite.errors import UsageError
from vllm_lite.log import init_logger

logger = init_logger(__name__)

# Seconds between two looks at the files.
REFRESH_INTERVAL = 2.0


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


def tls_context(server_config: ServerConfig) -> ssl.SSLContext | None:
    """The context of the ssl options; None is plain HTTP. Raises UsageError."""
    if server_config.ssl_certfile is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(context, server_config)
    context.verify_mode = ssl.VerifyMode(server_config.ssl_cert_reqs)
    if server_config.ssl_ciphers is not None:
        try:
            context.set_ciphers(server_config.ssl_ciphers)
        except ssl.SSLError:
            raise UsageError(
                f"--ssl-ciphers: OpenSSL knows no cipher in {server_config.ssl_ciphers!r}"
            ) from None
    return context


def _load(context: ssl.SSLContext, server_config: ServerConfig) -> None:
    """Read the files into `context`; raises UsageError, and may then have read a part of them."""
    certificate, key = server_config.ssl_certfile, server_config.ssl_keyfile
    assert certificate is not None

    def no_password() -> str:
        raise UsageError(f"The key in {key or certificate} is encrypted; give one that is not")

    try:
        context.load_cert_chain(certificate, key, no_password)
    except OSError as error:
        files = certificate if key is None else f"{certificate} and {key}"
        raise UsageError(
            f"{files} are no certificate and its key ({_reason(error)}); "
            "check --ssl-certfile and --ssl-keyfile"
        ) from None
    if server_config.ssl_ca_certs is not None:
        try:
            context.load_verify_locations(server_config.ssl_ca_certs)
        except OSError as error:
            raise UsageError(
                f"--ssl-ca-certs: {server_config.ssl_ca_certs} holds no certificates "
                f"({_reason(error)})"
            ) from None


def _reason(error: OSError) -> str:
    return getattr(error, "reason", None) or error.strerror or str(error)


class CertificateWatch:
    """Reads certificate, key and CA certificates again when their files change.

    Connections that stand keep what they began with. Files that do not fit each other, as in
    the middle of a renewal, are left alone until they do.
    """

    def __init__(self, context: ssl.SSLContext, server_config: ServerConfig) -> None:
        self._context = context
        self._config = server_config
        names = (server_config.ssl_certfile, server_config.ssl_keyfile, server_config.ssl_ca_certs)
        self._files = [name for name in names if name is not None]
        self._seen = self._stamps()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_INTERVAL)
            self.refresh()

    def refresh(self) -> bool:
        """Whether files have changed and are in use now."""
        stamps = self._stamps()
        if stamps == self._seen:
            return False
        self._seen = stamps
        try:
            _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self._config)
            _load(self._context, self._config)
        except UsageError as error:
            logger.warning("The TLS files changed and are not used yet: %s", error)
            return False
        logger.info("The TLS files changed and are in use: %s", ", ".join(self._files))
        return True

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(name) for name in self._files]


def _stamp(name: str) -> tuple[int, int, int] | None:
    """A stamp that changes with the file's content; None while there is no file."""
    try:
        found = os.stat(name)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
