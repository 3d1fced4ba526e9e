"""Options of the front end, for HTTP and for batches."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from vllm_lite.config.options.absent import rows
from vllm_lite.config.options.option import Option, config, option
from vllm_lite.config.values import Json
from vllm_lite.errors import UsageError


@config
class ReplyConfig:
    """Reading and answering of requests, over HTTP or from a file."""

    ROWS: ClassVar[tuple[Option, ...]] = rows("replies")

    GROUP: ClassVar[str] = "Frontend"

    chat_template: str | None = option(
        None, "Jinja template, as a file or in one line, in place of the tokenizer's own."
    )
    chat_template_content_format: Literal["auto", "string", "openai"] = option(
        "auto", "How message content reaches the template: as text, or as a list of parts."
    )
    trust_request_chat_template: bool = option(
        False, "Render templates that requests bring; others are refused."
    )
    default_chat_template_kwargs: Json = option(
        {}, "JSON of chat template variables, under those that requests bring."
    )
    enable_auto_tool_choice: bool = option(
        False, "Let the model decide whether to call tools; needs --tool-call-parser."
    )
    tool_call_parser: str | None = option(
        None, "Parser of tool calls in a model's text, by the name of its format."
    )
    tool_parser_plugin: str = option("", "Python file that registers further tool parsers.")
    tool_strict_level: Literal["auto", "function", "parameter"] = option(
        "auto",
        "Enforcement of calls that the model chooses of tools that are not strict: nothing "
        "(auto), form and name (function), or the arguments' schema too (parameter).",
    )
    exclude_tools_when_tool_choice_none: bool = option(
        False, "Leave tools out of the prompt if a request's tool_choice is none."
    )
    enable_per_request_metrics: bool = option(
        False, "Report a request's timings in its reply, if it has one choice."
    )
    fingerprint_mode: Literal["full", "hash", "custom", "none"] = option(
        "full",
        "system_fingerprint of replies: version and hash of all that changes seeded replies, the "
        "hash alone, --fingerprint-value, or null.",
    )
    fingerprint_value: str | None = option(None, "The fingerprint with --fingerprint-mode custom.")
    response_role: str = option("assistant", "Role of generated chat messages.")
    return_tokens_as_token_ids: bool = option(
        False, "Show tokens in logprobs as token_id:N instead of their text."
    )
    enable_prompt_tokens_details: bool = option(
        False, "Report how many prompt tokens came from the prefix cache."
    )
    enable_force_include_usage: bool = option(
        False, "Report usage in every response, streamed ones included."
    )
    max_log_len: int | None = option(
        None, "Most characters or token ids of a prompt in a log line.", ge=0
    )
    enable_log_requests: bool = option(False, "Log each request's parameters.", group="options")
    enable_log_outputs: bool = option(False, "Log generated text too.")
    log_error_stack: bool = option(False, "Log the stack of every error response, refusals too.")
    enable_log_deltas: bool = option(
        True, "With --enable-log-outputs, log each part of a streamed text at once."
    )
    anthropic_disabled_thinking_effort: Literal[
        "auto", "high", "low", "max", "medium", "none", "xhigh"
    ] = option(
        "auto",
        "/v1/messages: reasoning_effort of requests that turn thinking off; auto: none.",
    )


@config
class ServerConfig(ReplyConfig):
    """Addresses, access and replies of the server."""

    ROWS: ClassVar[tuple[Option, ...]] = rows("server")

    host: str | None = option(None, "Address to listen on; default: all interfaces.")
    port: int = option(8000, "TCP port to listen on.", ge=0, le=65535)
    uds: str | None = option(None, "Unix socket to listen on instead of host and port.")
    root_path: str | None = option(None, "URL prefix that a reverse proxy strips.")
    uvicorn_log_level: Literal["critical", "error", "warning", "info", "debug", "trace"] = option(
        "info", "Verbosity of the HTTP server's own logger."
    )
    disable_uvicorn_access_log: bool = option(False, "Write no access log.")
    disable_access_log_for_endpoints: str | None = option(
        None, "Paths without access log, separated by commas."
    )
    h11_max_incomplete_event_size: int = option(
        4 << 20, "Most bytes of a request's head; more is answered 431.", ge=256, human=True
    )
    h11_max_header_count: int = option(
        256, "Most headers of a request; more is answered 431.", ge=1
    )
    middleware: list[str] = option(
        [],
        "Import path of an ASGI middleware class, or of an async function (request, call_next).",
        repeatable=True,
    )
    disable_fastapi_docs: bool = option(False, "Serve no OpenAPI schema and no docs pages.")
    disable_web_page: bool = option(False, "Serve no web page at /.")
    disable_frontend_multiprocessing: bool = option(
        False, "Run the HTTP front end and the engine in one process."
    )
    allow_credentials: bool = option(False, "CORS: let browsers send credentials.")
    allowed_origins: list[str] = option(["*"], "CORS: origins to accept, a JSON list.", json=True)
    allowed_methods: list[str] = option(["*"], "CORS: methods to accept, a JSON list.", json=True)
    allowed_headers: list[str] = option(["*"], "CORS: headers to accept, a JSON list.", json=True)
    api_key: list[str] = option(
        [],
        "Keys, one of which a client must send as a bearer token.",
        auto="VLLM_API_KEY if it is set, else no key",
        secret=True,
    )
    ssl_keyfile: str | None = option(None, "Private key file for HTTPS.")
    ssl_certfile: str | None = option(None, "Certificate file for HTTPS.")
    ssl_ca_certs: str | None = option(None, "CA certificates that client certificates must have.")
    ssl_cert_reqs: int = option(
        0, "Client certificates: 0 none, 1 optional, 2 required.", ge=0, le=2
    )
    ssl_ciphers: str | None = option(
        None, "OpenSSL's list of the ciphers of TLS 1.2 and earlier.", auto="OpenSSL's own"
    )
    enable_ssl_refresh: bool = option(
        False,
        "Reload certificate, key and CA certificates when their files change; a removed CA "
        "stays valid until the next start.",
    )
    enable_request_id_headers: bool = option(
        False, "Answer with an X-Request-Id header, the client's if it sent one."
    )
    enable_server_load_tracking: bool = option(False, "Report running requests at /load.")
    enable_tokenizer_info_endpoint: bool = option(
        False,
        "Describe the tokenizer and its chat template at /tokenizer_info.",
    )
    batch_storage_dir: str | None = option(
        None,
        "Directory of /v1/files and /v1/batches, which need it. "
        "It makes --scheduling-policy priority unless given; rows of batches come last.",
    )
    batch_storage_limit: int = option(
        10 << 30,
        "Most bytes in that directory; further uploads are refused.",
        ge=1,
        human=True,
    )
    sse_keep_alive_interval: int = option(
        0, "Seconds of silence after which a stream sends a comment; 0: never.", ge=0
    )
    api_server_count: int = option(
        1,
        "HTTP server processes of the engine; a stored response is known only to the one "
        "that made it.",
        aliases=("-asc",),
        group="options",
        ge=1,
        le=64,
    )
    shutdown_timeout: int = option(
        30,
        "Seconds that running requests may take to finish after SIGTERM.",
        ge=0,
        group="options",
    )

    def __post_init__(self) -> None:
        if (self.fingerprint_mode == "custom") != (self.fingerprint_value is not None):
            raise UsageError("--fingerprint-value and --fingerprint-mode custom need each other")
        if self.enable_auto_tool_choice and not self.tool_call_parser:
            raise UsageError("--enable-auto-tool-choice needs --tool-call-parser")
        if self.enable_log_outputs and not self.enable_log_requests:
            raise UsageError("--enable-log-outputs needs --enable-log-requests")
        if self.api_server_count > 1 and self.disable_frontend_multiprocessing:
            raise UsageError(
                "--api-server-count above 1 needs an engine in a process of its own; drop "
                "--disable-frontend-multiprocessing"
            )
        if any(not key for key in self.api_key):
            raise UsageError("--api-key must not be empty")
        if self.ssl_keyfile and not self.ssl_certfile:
            raise UsageError("--ssl-keyfile needs --ssl-certfile")
        for name in ("ssl_ca_certs", "ssl_cert_reqs", "ssl_ciphers", "enable_ssl_refresh"):
            if getattr(self, name) and not self.ssl_certfile:
                raise UsageError(f"--{name.replace('_', '-')} needs --ssl-certfile")
        if self.ssl_cert_reqs and not self.ssl_ca_certs:
            raise UsageError("--ssl-cert-reqs needs --ssl-ca-certs")
        for name in ("ssl_keyfile", "ssl_certfile", "ssl_ca_certs"):
            path = getattr(self, name)
            if path is not None and not Path(path).is_file():
                flag = "--" + name.replace("_", "-")
                raise UsageError(f"{flag}: there is no file {path}")
        template = self.chat_template
        # A template has braces or lines; anything else was meant as a path.
        if template and not set(template) & set("{}\n") and not Path(template).is_file():
            raise UsageError(f"--chat-template: there is no file {template}")
