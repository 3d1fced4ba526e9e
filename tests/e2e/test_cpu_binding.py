"""Threads that compute stay on the CPUs that VLLM_CPU_OMP_THREADS_BIND lists."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoints import write_hf

SCRIPT = """
import json, os, sys
from pathlib import Path
from vllm_lite import LLM, SamplingParams

def processes():
    yield os.getpid()
    for task in Path("/proc/self/task").iterdir():
        yield from map(int, (task / "children").read_text().split())

options = {"load_format": "dummy", "skip_tokenizer_init": True, "dtype": "float32"}
alone = sys.argv[2] == "alone"
with LLM(sys.argv[1], disable_frontend_multiprocessing=alone, max_model_len=64, **options) as llm:
    llm.generate([{"prompt_token_ids": [5, 6, 7]}], SamplingParams(max_tokens=2), use_tqdm=False)
    print(json.dumps([sorted(os.sched_getaffinity(pid)) for pid in processes()]))
"""


@pytest.mark.parametrize("where", ["alone", "child"])
def test_the_thread_that_runs_steps_is_bound(where: str, tmp_path: Path) -> None:
    usable = sorted(os.sched_getaffinity(0))
    command = [sys.executable, "-c", SCRIPT, str(write_hf(tmp_path / "model")), where]
    environment = {**os.environ, "VLLM_CPU_OMP_THREADS_BIND": str(usable[-1])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    front = usable if where == "child" else usable[-1:]
    children = [usable[-1:]] if where == "child" else []
    assert json.loads(done.stdout.splitlines()[-1]) == [front, *children]
