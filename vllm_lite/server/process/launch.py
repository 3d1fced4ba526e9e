"""`serve`, from options to exit code.

The engine core is started as soon as it has a config and an address is taken, so that it loads
while this process imports the HTTP stack (serving.py).
"""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING

from vllm_lite import __version__
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.server import ServerConfig
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.engine.link.core_process import launch_core
from vllm_lite.lifeline import terminable
from vllm_lite.log import init_logger, set_process_name, timeline
from vllm_lite.metrics.board import Board
from vllm_lite.server.process.listen import Listener
from vllm_lite.server.process.replicas import Replicas
from vllm_lite.server.startup_checks import check_reply_options, load_middleware

if TYPE_CHECKING:
    from vllm_lite.server.process.serving import Beside

logger = init_logger(__name__)

# Seconds of loading after which the log says what is loading.
BANNER_DELAY = 10.0


def run_server(
    engine_args: EngineArgs, server_config: ServerConfig, beside: Beside | None = None
) -> int:
    """Serve, and run `beside`, until a signal; returns the exit code 0.

    Raises UsageError or CheckpointError for mistakes of the user, EngineDeadError where the
    engine failed; then nothing of the server is left either.
    """
    timeline.mark("imports")
    set_process_name("APIServer")
    engine_args.configure_logging()
    config = engine_args.create_engine_config("server")
    timeline.mark("config")
    # Report mistakes of the user before anything is logged or loaded.
    load_middleware(server_config.middleware)
    check_reply_options(config, server_config)
    with terminable():
        listener = Listener(server_config)
        banner = _Banner(engine_args.model)
        # Until it serves: to look for garbage among modules takes a tenth of the imports' time.
        gc.disable()
        try:
            _start_and_serve(config, server_config, listener, banner, beside)
        finally:
            gc.enable()
            banner.cancel()
            listener.close()
    return 0


class _Banner:
    """The first line of the log, after what a user has got wrong would have shown.

    That is when the model is loaded, or is still loading after some seconds.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._timer = threading.Timer(BANNER_DELAY, self._log)
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> bool:
        """Log nothing later; whether nothing was logged yet."""
        is_first = not self._timer.finished.is_set()
        self._timer.cancel()
        return is_first

    def show(self) -> None:
        """Log the line now, where it was not."""
        if self.cancel():
            self._log()

    def _log(self) -> None:
        logger.info("vLLM-lite %s, model %s", __version__, self._model)


def _start_and_serve(
    config: VllmConfig,
    server_config: ServerConfig,
    listener: Listener,
    banner: _Banner,
    beside: Beside | None,
) -> None:
    count = server_config.api_server_count
    core = launch_core(
        config, in_process=server_config.disable_frontend_multiprocessing, num_front_ends=count
    )
    board, replicas = Board(), Replicas()
    if count > 1:
        board = Board.create(count)
        replicas.start(config, server_config, core, listener, board)
    # Imported here: the HTTP stack takes half a second, in which the core loads.
    from vllm_lite.server.process.serving import serve_first

    serve_first(config, server_config, listener, core, board, replicas, banner.show, beside)
