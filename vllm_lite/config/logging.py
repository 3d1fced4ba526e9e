"""LoggingConfig: level and form of the log of all processes."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from vllm_lite.config.options.option import JsonOption, config, make, option
from vllm_lite.config.values import JsonView
from vllm_lite.errors import UsageError
from vllm_lite.log import LogFormat, reconfigure_logging


@config
class LoggingConfig:
    """The log."""

    JSON_OPTION: ClassVar[JsonOption] = JsonOption(
        "logging_config", "JSON: level and form of the log.", group="LoggingConfig"
    )

    log_level: Literal["CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG", "NOTSET"] | None = option(
        None,
        "Least urgent lines to log.",
        auto="VLLM_LOGGING_LEVEL, else INFO",
        alone="log_level",
    )
    formatter: LogFormat = option(
        "text",
        "Lines of text, or one JSON object a line, of the HTTP server too.",
        alone="log_format",
    )
    configure_logging: bool | None = option(
        None,
        "Configure logging; false keeps the application's configuration.",
        auto="VLLM_CONFIGURE_LOGGING, else true",
    )
    pylogging_config_file: str | None = option(
        None,
        "JSON file for Python's logging.config.dictConfig, in place of the rest.",
        auto="VLLM_LOGGING_CONFIG_PATH",
        alone="log_config_file",
        group="Frontend",
    )

    def __post_init__(self) -> None:
        file = self.pylogging_config_file
        if file is None:
            return
        if self.configure_logging is False:
            raise UsageError(
                "--log-config-file needs logging to be set up; drop "
                "--logging-config.configure_logging false"
            )
        if not Path(file).is_file():
            raise UsageError(f"--log-config-file: there is no file {file}")

    def apply(self) -> None:
        """Configure this process's log; repeating it changes nothing."""
        reconfigure_logging(
            level=self.log_level,
            form=self.formatter,
            file=self.pylogging_config_file,
            is_wanted=self.configure_logging is not False,
        )


def apply_logging(given: JsonView) -> None:
    """Configure this process's log from the flat options `given`."""
    config: LoggingConfig = make(
        LoggingConfig, {name: value for name, value in given.items() if value is not None}
    )
    config.apply()
