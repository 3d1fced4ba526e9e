"""EngineArgs: the options of an engine by name, flat, as users write them.

Derived from the fields of VllmConfig's tree, so it repeats none of them. Holds only what was
set; `create_engine_config` resolves the rest.
"""

from __future__ import annotations

import argparse
from typing import Any

from vllm_lite.config.logging import apply_logging
from vllm_lite.config.option import option_table
from vllm_lite.config.resolve import UsageContext, resolve
from vllm_lite.config.values import JsonView
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.errors import nearest


class EngineArgs:
    """`EngineArgs(model="demo", max_num_seqs=4)`; any option of the command line is a field.

    Reading an option that was not set gives its default, or None where it is derived.
    Raises TypeError for a name that is no option.
    """

    def __init__(self, **given: Any) -> None:
        table = option_table(VllmConfig)
        for name in given:
            if name not in table:
                close = nearest(name, table)
                hint = f"; did you mean {close}?" if close else ""
                raise TypeError(f"EngineArgs has no option {name!r}{hint}")
        if isinstance(given.get("served_model_name"), str):
            given["served_model_name"] = [given["served_model_name"]]
        self._given = given

    @property
    def given(self) -> JsonView:
        """The options that were set, by name."""
        return self._given

    def __getattr__(self, name: str) -> Any:
        entry = option_table(VllmConfig).get(name)
        if entry is None or name.startswith("_"):
            raise AttributeError(f"EngineArgs has no option {name!r}")
        return self._given.get(name, entry.flat_default)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EngineArgs) and self._given == other._given

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._given)))

    def __repr__(self) -> str:
        table = option_table(VllmConfig)
        shown = {
            name: "***" if table[name].rules.get("secret") else value
            for name, value in self._given.items()
        }
        return f"EngineArgs({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def configure_logging(self) -> None:
        """Have this process log as the options say; raises UsageError."""
        apply_logging(self._given)

    def create_engine_config(self, usage_context: UsageContext = "server") -> VllmConfig:
        """Find the model, derive what was not set, and check it all; raises UsageError."""
        return resolve(self._given, usage_context)

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> EngineArgs:
        """The engine's part of a namespace that a parser of this package made."""
        table = option_table(VllmConfig)
        return cls(**{name: value for name, value in vars(args).items() if name in table})


AsyncEngineArgs = EngineArgs
