"""A checkpoint that contradicts itself is refused by one line that names the field or tensor."""

from __future__ import annotations

import copy
import json
import random
import re
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.models.checkpoints import make_model, save
from tests.models.families import CASES, FAMILIES
from tests.models.runner import load
from vllm_lite.config.checkpoints.architectures import ARCHITECTURES
from vllm_lite.config.checkpoints.family_config import HARMLESS, READ_BY_ALL
from vllm_lite.errors import UsageError

REMOVED = object()
WRONG: tuple[Any, ...] = (REMOVED, None, -1, 0, 0.3, "unheard of", [], [1], {}, 2**40, float("nan"))
# Of a case, in CI; the full matrix is `python -m tests.models.test_bad_checkpoints`.
SAMPLE = 12
# Of memory that a refusal may take beyond what the whole model did.
MOST_KIB = 256 * 1024
Fault = Callable[[], str | None]
Tensors = dict[str, torch.Tensor]
# A tensor's name, as refusals quote it.
TENSOR = re.compile(r"'[\w.]+\.[\w.]+'")


def fields(config: dict[str, Any], outer: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of the fields that may matter, those of objects within too."""
    for name, value in config.items():
        if name in HARMLESS or name.startswith("_"):
            continue
        yield (*outer, name)
        if isinstance(value, dict):
            yield from fields(value, (*outer, name))


def wrong_values(value: Any) -> Iterator[Any]:
    """Values that a broken file may hold instead of `value`."""
    yield from WRONG
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield from (10 * value, value + 1, -value)
    if isinstance(value, list) and value:
        yield from (value[:-1], [*value[:-1], "unheard of"], [*value[:-1], None], value * 2)


def with_field(config: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(config)
    holder = changed
    for name in path[:-1]:
        holder = holder[name]
    if value is REMOVED:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return changed


def wrong_tensors(tensors: Tensors) -> Iterator[tuple[str, Tensors]]:
    """Names, and `tensors` of which that one is not what it should be."""
    for name, tensor in tensors.items():
        yield name, {other: value for other, value in tensors.items() if other != name}
        shapes = [tensor.flatten()[:-1].clone()]
        shapes += [tensor.mT.contiguous()] if tensor.dim() > 1 else [tensor[..., None].clone()]
        for wrong in shapes:
            if wrong.shape != tensor.shape:
                yield name, {**tensors, name: wrong}
    yield "unheard.of.weight", {**tensors, "unheard.of.weight": torch.ones(3)}


def wrong_answer(path: Path, *names: str) -> str | None:
    """None if the files at `path` load, or are refused by a line that names one of `names`."""
    try:
        load(path)
    except UsageError as error:
        message = str(error).replace(str(path), "")
        if "\n" not in message and (TENSOR.search(message) or any(x in message for x in names)):
            return None
        return f"says: {message}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


class Files:
    """A case's files, and each of their faults."""

    def __init__(self, case: str, folder: Path) -> None:
        family, changes = CASES[case]
        save(make_model(family, **changes), folder)
        self._folder = folder
        self._config = json.loads((folder / "config.json").read_text())
        self._tensors = load_file(folder / "model.safetensors")
        row = ARCHITECTURES[self._config["architectures"][0]]
        # Where two fields contradict each other, the line may be about the other one.
        self._names = [name for name in READ_BY_ALL | row.reads if "_" in name]

    def faults(self) -> Iterator[Fault]:
        """Functions that break the files and return what is wrong with the answer to it, if any."""
        for path in fields(self._config):
            found = self._config
            for name in path:
                found = found[name]
            for value in wrong_values(found):
                yield partial(self._of_config, path, value)
        for name, tensors in wrong_tensors(self._tensors):
            yield partial(self._of_tensors, name, tensors)

    def _of_config(self, path: tuple[str, ...], value: Any) -> str | None:
        config = with_field(self._config, path, value)
        (self._folder / "config.json").write_text(json.dumps(config))
        save_file(self._tensors, self._folder / "model.safetensors")
        found = wrong_answer(self._folder, *path, "the architecture", *self._names)
        return found and f"{'.'.join(path)} as {'REMOVED' if value is REMOVED else value!r} {found}"

    def _of_tensors(self, name: str, tensors: Tensors) -> str | None:
        (self._folder / "config.json").write_text(json.dumps(self._config))
        save_file(tensors, self._folder / "model.safetensors")
        found = wrong_answer(self._folder, name)
        return found and f"{name} as {[*tensors[name].shape] if name in tensors else '-'} {found}"


def first_cases() -> dict[str, str]:
    """The first case of each family."""
    return {family: case for case, (family, _) in reversed(CASES.items())}


@pytest.mark.parametrize(
    "half",
    [slice(SAMPLE // 2), pytest.param(slice(SAMPLE // 2, SAMPLE), marks=pytest.mark.slow)],
    ids=["some", "more"],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_wrong_is_named(family: str, half: slice, tmp_path: Path) -> None:
    faults = list(Files(first_cases()[family], tmp_path).faults())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = [fault() for fault in random.Random(family).sample(faults, SAMPLE)[half]]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert [one for one in found if one] == []
    assert grown < MOST_KIB


def main() -> None:
    """Print the faults of the cases that are named, or of every family's first."""
    for case in sys.argv[1:] or first_cases().values():
        with tempfile.TemporaryDirectory() as folder:
            for fault in Files(case, Path(folder)).faults():
                if found := fault():
                    print(case, found, flush=True)


if __name__ == "__main__":
    main()
