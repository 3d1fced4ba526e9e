"""The demo model on ranks: the tokens of one process, and an end that names the rank."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.server_process import ServerProcess
from tests.e2e.test_tokens import EXPECTED, PROMPTS, engine, tokens
from tests.models.checkpoints import make_model, save
from vllm_lite.errors import EngineDeadError

pytestmark = pytest.mark.alone

# Seconds within which a server ends that lost a rank.
LIMIT = 5.0
# Its nine heads divide by three.
SIZE = 3


def ranks_of(process: psutil.Process) -> list[psutil.Process]:
    children = process.children(recursive=True)
    return [one for one in children if "vllm_lite.executor.rank_process" in one.cmdline()]


def test_ranks_give_the_tokens_of_transformers() -> None:
    with engine(tensor_parallel_size=SIZE, disable_frontend_multiprocessing=False) as llm:
        assert tokens(llm, PROMPTS[:6]) == EXPECTED[:6]
        ranks = ranks_of(psutil.Process())
        assert len(ranks) == SIZE
        # None is asked for anything: the core hears of it all the same.
        ranks[1].kill()
        _, alive = psutil.wait_procs(ranks, timeout=LIMIT)
        assert not alive
        with pytest.raises(EngineDeadError, match="rank 1: the process was killed by SIGKILL"):
            tokens(llm, PROMPTS[:1])


def test_a_server_that_loses_a_rank_ends_with_one_line(tmp_path: Path) -> None:
    model = str(save(make_model("llama"), tmp_path))
    options = ("-tp", "2", "--dtype", "float32", "--skip-tokenizer-init")
    with ServerProcess(*options, model=model) as server:
        prompt, settings = [5, 9, 2, 77], {"temperature": 0, "return_token_ids": True}
        reply = server.post(
            "/v1/completions", model=model, prompt=prompt, max_tokens=4, **settings
        ).json()
        assert len(reply["choices"][0]["token_ids"]) == 4
        children = server.children()
        start = time.monotonic()
        ranks_of(psutil.Process(server.process.pid))[1].kill()
        assert server.process.wait(LIMIT) == 1
        assert time.monotonic() - start < LIMIT
        lines = [line for line in server.log().splitlines() if "error:" in line]
        assert len(lines) == 1 and "rank 1: the process was killed by SIGKILL" in lines[0]
        _, alive = psutil.wait_procs(children, timeout=LIMIT)
        assert not alive
    assert not [name for name in os.listdir("/dev/shm") if "vllm" in name]
