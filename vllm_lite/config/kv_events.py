"""KVEventsConfig: which events of the prefix cache are published, and where."""

from __future__ import annotations

from typing import ClassVar, Literal

from vllm_lite.config.options.option import JsonOption, config, option
from vllm_lite.errors import UsageError


@config
class KVEventsConfig:
    """Events for routers that know which engine has which prefix cached."""

    JSON_OPTION: ClassVar[JsonOption] = JsonOption(
        "kv_events_config",
        "JSON: where events of the prefix cache (blocks stored and removed) are published.",
        group="VllmConfig",
    )

    enable_kv_cache_events: bool = option(False, "Publish events.")
    publisher: Literal["null", "zmq"] | None = option(
        None, "zmq: a ZeroMQ PUB socket; null: none. By default zmq where events are enabled."
    )
    endpoint: str = option(
        "tcp://*:5557", "Address of the socket; bound with a * in it, else connected."
    )
    replay_endpoint: str | None = option(
        None, "Address of a ROUTER socket that sends missed batches again."
    )
    buffer_steps: int = option(10_000, "Batches kept for that.", ge=0)
    hwm: int = option(100_000, "Batches that the socket holds for a slow listener.", ge=0)
    max_queue_size: int = option(100_000, "Batches that wait to be sent.", ge=1)
    topic: str = option("", "First frame of each batch.")

    def __post_init__(self) -> None:
        if self.publisher == "zmq" and not self.enable_kv_cache_events:
            raise UsageError(
                "--kv-events-config names a publisher without events; set "
                "enable_kv_cache_events to true"
            )

    @property
    def is_on(self) -> bool:
        return self.enable_kv_cache_events and self.publisher != "null"
