"""TLS of the server: its context from the options, and certificates that change while it runs.

Knows no socket. Invariant: a context always holds a certificate and the key that fits it.
"""

from __future__ import annotations

import asyncio
import os
import ssl

from vllm_lite.config.server import ServerConfig
from vllm_lite.errors import UsageError
from vllm_lite.log import init_logger

logger = init_logger(__name__)

# Seconds between two looks at the files.
REFRESH_INTERVAL = 2.0


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
        """Check the files every few seconds, forever."""
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
