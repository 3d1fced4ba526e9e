"""uvicorn as this server wants it: protocol, limits, TLS, logging and no signals of its own."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.config import LOGGING_CONFIG

from vllm_lite import envs
from vllm_lite.config.logging import LoggingConfig
from vllm_lite.config.server import ServerConfig
from vllm_lite.server.process.access_log import add_request_ids, silence_paths, silence_start
from vllm_lite.server.process.http_protocol import limited_protocol

# Seconds that replies may take to reach their clients once nothing is generated any more.
FLUSH_TIMEOUT = 2.0


class HttpServer(uvicorn.Server):
    """uvicorn without signal handlers of its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the Lifecycle."""
        yield


def http_server(
    app: Any, server_config: ServerConfig, tls: ssl.SSLContext | None, logging: LoggingConfig
) -> HttpServer:
    """A server of `app`, over TLS where there is a context; it opens no socket."""
    config = uvicorn.Config(
        app,
        http=limited_protocol(
            server_config.h11_max_header_count, server_config.h11_max_incomplete_event_size
        ),
        loop="none",
        ws="none",
        log_level=server_config.uvicorn_log_level,
        access_log=not server_config.disable_uvicorn_access_log,
        timeout_keep_alive=envs.VLLM_HTTP_TIMEOUT_KEEP_ALIVE,
        timeout_graceful_shutdown=round(FLUSH_TIMEOUT),
        log_config=_log_config(logging),
        ssl_context_factory=None if tls is None else lambda config, default: tls,
    )
    # Only now uvicorn's logger is what it will be.
    silence_paths(server_config.disable_access_log_for_endpoints)
    silence_start()
    add_request_ids()
    return HttpServer(config)


def _log_config(logging: LoggingConfig) -> dict[str, Any] | None:
    """What uvicorn hands to dictConfig; None leaves its loggers as they are."""
    if logging.pylogging_config_file is not None or logging.configure_logging is False:
        return None
    if logging.formatter == "text":
        return LOGGING_CONFIG
    as_json = {"()": "vllm_lite.log.JsonFormatter"}
    return {**LOGGING_CONFIG, "formatters": dict.fromkeys(LOGGING_CONFIG["formatters"], as_json)}
