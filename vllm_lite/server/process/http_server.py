"""uvicorn as this server wants it: protocol, limits, TLS, logging and no signals of its own."""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import Collection, Iterator

import uvicorn
from starlette.types import ASGIApp
from uvicorn.config import LOGGING_CONFIG

from vllm_lite import envs
from vllm_lite.config.logging import LoggingConfig
from vllm_lite.config.server import ServerConfig
from vllm_lite.server.generation import current_request_id
from vllm_lite.server.process.http_protocol import limited_protocol

# Seconds that replies may take to reach their clients once nothing is generated any more.
FLUSH_TIMEOUT = 2.0


# Of the lines of a start, programs wait for "Application startup complete."
_START = ("Started server process", "Waiting for application startup")


class HttpServer(uvicorn.Server):
    """uvicorn without signal handlers of its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the Lifecycle."""
        yield


def http_server(
    app: ASGIApp, server_config: ServerConfig, tls: ssl.SSLContext | None, log: LoggingConfig
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
        log_config=_log_config(log),
        ssl_context_factory=None if tls is None else lambda config, default: tls,
    )
    # Only now uvicorn's logger is what it will be.
    access = logging.getLogger("uvicorn.access")
    paths = (server_config.disable_access_log_for_endpoints or "").split(",")
    if silenced := [path.strip() for path in paths if path.strip()]:
        access.addFilter(PathFilter(silenced))
    access.addFilter(_with_request_id)
    logging.getLogger("uvicorn.error").addFilter(_is_needed)
    return HttpServer(config)


class PathFilter(logging.Filter):
    """Drops the log lines of requests to certain paths, with any query."""

    def __init__(self, paths: Collection[str]) -> None:
        super().__init__()
        self._paths = frozenset(paths)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write the line; its arguments are client, method, path, version, status."""
        arguments = record.args
        if not isinstance(arguments, tuple) or len(arguments) < 3:
            return True
        return str(arguments[2]).partition("?")[0] not in self._paths


def _with_request_id(record: logging.LogRecord) -> bool:
    record.request_id = current_request_id() or None
    return True


def _is_needed(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_START)


def _log_config(log: LoggingConfig) -> dict[str, object] | None:
    """The argument of uvicorn's dictConfig; None leaves its loggers as they are."""
    if log.pylogging_config_file is not None or log.configure_logging is False:
        return None
    if log.formatter == "text":
        return LOGGING_CONFIG
    as_json = {"()": "vllm_lite.log.JsonFormatter"}
    return {**LOGGING_CONFIG, "formatters": dict.fromkeys(LOGGING_CONFIG["formatters"], as_json)}
