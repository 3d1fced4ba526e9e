"""EngineArgs is the flat view of every engine option, and repeats none."""

from __future__ import annotations

import argparse

import pytest

from vllm_lite.config.engine_args import AsyncEngineArgs, EngineArgs
from vllm_lite.config.options.option import option_table
from vllm_lite.config.vllm import VllmConfig


def test_every_option_can_be_read_and_derived_ones_are_none() -> None:
    args = EngineArgs()
    for name, entry in option_table(VllmConfig).items():
        assert getattr(args, name) == entry.flat_default
    assert args.max_model_len is None
    assert args.block_size == 16


def test_set_options_are_kept_and_only_those() -> None:
    args = EngineArgs(model="demo", max_num_seqs=4, served_model_name="one")
    assert dict(args.given) == {"model": "demo", "max_num_seqs": 4, "served_model_name": ["one"]}
    assert args == EngineArgs(model="demo", max_num_seqs=4, served_model_name=["one"])
    assert args.max_num_seqs == 4


def test_an_unknown_option_is_a_type_error_with_a_suggestion() -> None:
    with pytest.raises(TypeError, match=r"max_num_sqs.*did you mean max_num_seqs"):
        EngineArgs(max_num_sqs=4)
    with pytest.raises(AttributeError):
        EngineArgs().nothing  # noqa: B018


def test_a_namespace_may_hold_more_than_the_engine_s_options() -> None:
    args = EngineArgs.from_cli_args(argparse.Namespace(model="demo", port=1, seed=3))
    assert dict(args.given) == {"model": "demo", "seed": 3}
    assert AsyncEngineArgs is EngineArgs
