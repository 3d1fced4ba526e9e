"""A plugin for pytest: the compiled kernels come from a file instead of the installed package.

    python -m pytest -p tests.sanitized_module --cpu-module FILE tests/kernels

Used by tests/sanitize.py for builds that only tests should load.
"""

from __future__ import annotations

import importlib.util
import sys

import pytest

import vllm_lite

NAME = "vllm_lite._cpu"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-module", required=True, help="the file to load as vllm_lite._cpu")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    # Before any module of the tests is imported, so that nothing has the other one yet.
    file = early_config.known_args_namespace.cpu_module
    spec = importlib.util.spec_from_file_location(NAME, file)
    assert spec is not None and spec.loader is not None and NAME not in sys.modules
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = vllm_lite._cpu = module
    spec.loader.exec_module(module)


def pytest_report_header(config: pytest.Config) -> str:
    return f"kernels of {config.getoption('--cpu-module')}"
