"""Processes that are forked from one which has imported what takes long, and done nothing else."""

from __future__ import annotations

import multiprocessing

SERVER = multiprocessing.get_context("forkserver")
# What commands and models need.
SERVER.set_forkserver_preload(
    ["openai.resources.chat.completions", "prompt_toolkit.shortcuts", "tests.models.runner"]
)
