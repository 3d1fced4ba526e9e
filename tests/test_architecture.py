"""The walls of the house: who may import whom, how large a file may grow, what is never used.

Read from the syntax tree alone, so that a broken module still fails for the right reason.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "vllm_lite"
FILES = sorted(PACKAGE.rglob("*.py"))

# A module may import its own package and strictly lower layers.
LAYERS: dict[str, int] = {
    "errors": 0,
    "log": 0,
    "envs": 0,
    "lifeline": 0,
    "progress": 0,
    "config": 1,
    "structured_outputs_params": 1,
    "structured_output.grammar": 1,
    "structured_output.schema": 1,
    "beam_search_params": 1,
    "repetition": 1,
    "sampling_params": 1,
    "pooling_params": 1,
    "outputs": 1,
    "metrics.stats": 1,
    "spec_decode": 1,
    "core": 2,
    "tokenizer": 2,
    "parsers": 2,
    "structured_output": 2,
    "beam_search": 3,
    "scoring": 3,
    "io_processor": 3,
    "platform": 3,
    "distributed": 3,
    "kernels": 3,
    "quantization": 3,
    "spec_decode.drafter": 4,
    "spec_decode.suffix": 4,
    "loader": 4,
    "layers": 4,
    "models": 5,
    "sample": 5,
    "worker": 7,
    "executor": 8,
    "engine": 9,
    "metrics": 9,
    "llm": 10,
    "llm_pooling": 10,
    "server": 10,
    "batch": 11,
    "bench": 11,
    "cli": 11,
    "entrypoints": 12,
    "__init__": 12,
    "__main__": 12,
}
# Pairs of one layer that do know each other, one way, each with its reason.
ALLOWED = {
    ("log", "envs"): "the level and format come from the environment",
    ("envs", "errors"): "a value that does not parse is a usage error",
    ("log", "errors"): "a configuration that does not parse is a usage error",
    ("quantization", "kernels"): "a storage format is multiplied by a kernel",
    ("distributed", "kernels"): "a collective is an operation, recorded as others are",
    ("loader", "layers"): "weights are loaded through the layers' own rules",
    ("loader", "models"): "load_model builds what the registry names, then fills it",
    ("sampling_params", "structured_outputs_params"): "a constraint is one of the choices",
    ("sampling_params", "beam_search_params"): "vLLM gives both from one module",
    ("beam_search_params", "outputs"): "continuations carry their log-probabilities",
    ("sampling_params", "repetition"): "what counts as a repeat is a sampling choice",
    ("pooling_params", "sampling_params"): "kinds of output are those of text",
    ("pooling_params", "config"): "requests are checked by what the model answers",
    ("llm", "llm_pooling"): "calls for text, and those for vectors",
    ("structured_output", "tokenizer"): "a grammar is compiled for the tokenizer's tokens",
    ("structured_output", "parsers"): "a grammar may begin where the reasoning ends",
    ("engine", "metrics"): "the front end feeds the metrics",
    ("cli", "batch"): "a command runs its package",
    ("cli", "bench"): "a command runs its package",
}
NO_TORCH = {
    "errors",
    "log",
    "envs",
    "lifeline",
    "progress",
    "config",
    "structured_outputs_params",
    "beam_search_params",
    "beam_search",
    "scoring",
    "io_processor",
    "repetition",
    "sampling_params",
    "pooling_params",
    "outputs",
    "metrics",
    "spec_decode",
    "core",
    "tokenizer",
    "parsers",
    "structured_output",
    "server",
    "batch",
    "bench",
    "cli",
    "entrypoints",
    "__init__",
    "__main__",
}
MAX_FILE, MAX_CLASS, MAX_FUNCTION, MAX_PARAMETERS = 420, 300, 60, 8
# An operation takes each tensor by name: a bundle would hide what a kernel reads.
MAX_OPERATION_PARAMETERS = 9


def unit_of(module: str) -> str:
    """`vllm_lite.core.block` -> `core`; `vllm_lite.metrics.stats` -> `metrics.stats`."""
    parts = module.split(".")[1:] or ["__init__"]
    dotted = ".".join(parts[:2])
    return dotted if dotted in LAYERS else parts[0]


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


def runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those under `if TYPE_CHECKING:`."""
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        yield node
        for child in ast.iter_child_nodes(node):
            test = getattr(child, "test", None)
            if isinstance(child, ast.If) and isinstance(test, ast.Name):
                stack.extend(child.orelse if test.id == "TYPE_CHECKING" else [child])
            else:
                stack.append(child)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree_of(path)))


@cache
def imports(path: Path) -> list[tuple[str, int]]:
    found = []
    for node in runtime_nodes(tree_of(path)):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


# Each rule tells what a file does against it; a test shows all offenders, a line each.
Rule = Callable[[Path], Iterator[str]]


def higher_layers(path: Path) -> Iterator[str]:
    unit = unit_of(module_of(path))
    for name, line in imports(path):
        if not name.startswith("vllm_lite."):
            continue  # the top module itself imports nothing until a name is used
        other = unit_of(name)
        if other not in LAYERS or unit.split(".")[0] == other.split(".")[0]:
            continue  # `from vllm_lite import __version__`, or its own package
        ours, theirs = LAYERS[unit], LAYERS[other]
        dotted = ".".join(name.split(".")[1:3])
        allowed = (unit, other) in ALLOWED or (unit, dotted) in ALLOWED
        if theirs >= ours and not allowed:
            yield f"{named(path)}:{line} imports {name} from a higher layer"


def torch_beside_the_engine(path: Path) -> Iterator[str]:
    if unit_of(module_of(path)).split(".")[0] in NO_TORCH:
        for name, line in imports(path):
            if name.split(".")[0] == "torch":
                yield f"{named(path)}:{line} must not import torch"


def sizes(path: Path) -> Iterator[str]:
    if path.read_text(encoding="utf-8").count("\n") > MAX_FILE:
        yield f"{named(path)} has outgrown {MAX_FILE} lines"
    for node in nodes_of(path):
        if isinstance(node, ast.ClassDef):
            size = (node.end_lineno or 0) - node.lineno + 1
            if size > MAX_CLASS:
                yield f"{named(path)}:{node.lineno} class of {size} lines"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = map(ast.unparse, node.decorator_list)
            if any(word.startswith("triton.jit") for word in decorators):
                continue  # a kernel takes every size and stride by name, in one piece
            size = (node.end_lineno or 0) - node.lineno + 1
            if size > MAX_FUNCTION:
                yield f"{named(path)}:{node.lineno} function of {size} lines"
            positional = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
            count = len([a for a in positional if a not in ("self", "cls")])
            is_operation = "kernels" in path.parts
            if count > (MAX_OPERATION_PARAMETERS if is_operation else MAX_PARAMETERS):
                yield f"{named(path)}:{node.lineno} takes {count} parameters"


def no_docstring(path: Path) -> Iterator[str]:
    if path.read_text(encoding="utf-8").strip() and not ast.get_docstring(tree_of(path)):
        yield f"{named(path)} has no module docstring"


def unsafe(path: Path) -> Iterator[str]:
    for name, line in imports(path):
        if name.split(".")[0] in {"pickle", "cloudpickle", "dill", "marshal", "shelve"}:
            yield f"{named(path)}:{line} imports {name.split('.')[0]}"
    for node in nodes_of(path):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in {"eval", "exec"}:
                yield f"{named(path)}:{node.lineno} calls {node.func.id}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if given.get("weights_only") != "True":
                yield f"{named(path)}:{node.lineno} reads a pickle"
        if isinstance(node, ast.Attribute) and node.attr == "environ" and path.name != "envs.py":
            yield f"{named(path)}:{node.lineno} reads os.environ"


def bars_elsewhere(path: Path) -> Iterator[str]:
    if module_of(path) != "vllm_lite.progress":
        for name, line in imports(path):
            if name.split(".")[0] == "tqdm":
                yield f"{named(path)}:{line} draws a bar: use vllm_lite.progress"


def around_the_client(path: Path) -> Iterator[str]:
    """The server reaches the engine only through its client, and models know no worker."""
    unit = unit_of(module_of(path))
    for name, line in imports(path):
        if unit == "models" and name.startswith("vllm_lite.worker"):
            yield f"{named(path)}:{line} imports {name}"
        if unit == "server" and name.startswith("vllm_lite.engine"):
            # These make the processes of a server and their engine; the rest see the protocol.
            starts = path.name in ("launch.py", "replicas.py", "serving.py")
            if not starts and not name.startswith("vllm_lite.engine.client"):
                yield f"{named(path)}:{line} imports {name}"


RULES = [
    *(higher_layers, torch_beside_the_engine, sizes, no_docstring, unsafe, bars_elsewhere),
    around_the_client,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_file_keeps_to(rule: Rule) -> None:
    found = [told for path in FILES for told in rule(path)]
    assert not found, "\n".join(found)


def test_every_exception_is_used() -> None:
    used = set()
    for path in FILES:
        unit = unit_of(module_of(path))
        for name, _ in imports(path):
            other, dotted = unit_of(name), ".".join(name.split(".")[1:3])
            if LAYERS.get(other, -1) >= LAYERS[unit]:
                used |= {(unit, other), (unit, dotted)}
    assert set(ALLOWED) <= used


def test_no_modules_import_each_other() -> None:
    """Neither pairs nor longer circles, nor by way of imports for types alone."""
    files = {module_of(path): path for path in FILES}
    left = {}
    for module, path in files.items():
        nodes = [n for n in nodes_of(path) if isinstance(n, ast.ImportFrom)]
        names = [f"{node.module}.{alias.name}" for node in nodes for alias in node.names]
        targets = {name if name in files else name.rpartition(".")[0] for name in names}
        left[module] = targets & files.keys() - {module}
    # Whoever imports nobody that is left is in no circle.
    while done := [module for module, targets in left.items() if not targets & left.keys()]:
        for module in done:
            del left[module]
    assert not left, f"these import each other: {sorted(left)}"


def test_docstrings_name_what_they_describe() -> None:
    """By a noun or a verb: an opening question word makes the reader wait for one."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = []
    for path in (
        p for folder in ("vllm_lite", "tests", "benchmarks") for p in ROOT.glob(f"{folder}/**/*.py")
    ):
        for node in nodes_of(path):
            words = (ast.get_docstring(node) or "").split() if isinstance(node, documented) else []
            if words and words[0].lower() in ("who", "what", "where", "tell", "tells"):
                found.append(f"{named(path)}:{getattr(node, 'lineno', 1)} {' '.join(words[:6])}")
    assert not found


def test_few_functions_import_modules_of_this_package() -> None:
    """Each says why: a process that must start fast, or that must not hold what another does."""
    late = []
    for path in FILES:
        functions = [
            n for n in nodes_of(path) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        for node in (node for function in functions for node in ast.walk(function)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm_lite"):
                late.append(f"{named(path)}:{node.lineno}")
    assert len(set(late)) <= 10, late


_TEXT_AND_HTTP = "vllm_lite.server tokenizers jinja2 fastapi pydantic"


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("vllm_lite vllm_lite.cli.main vllm_lite.server.app", "torch transformers"),
        # What runs before the engine core's process does.
        ("vllm_lite.cli.main vllm_lite.engine.link.spawn", "msgspec logging.config numpy"),
        (
            "vllm_lite.engine.core.__main__ vllm_lite.executor.uniproc",
            f"{_TEXT_AND_HTTP} transformers logging.config",
        ),
    ],
)
def test_what_must_start_fast_imports_little(modules: str, absent: str) -> None:
    held = f"print(sorted(set({absent.split()}) & set(sys.modules)))"
    code = f"import sys, {', '.join(modules.split())}; {held}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@cache
def _names(path: Path) -> set[str]:
    """Names that a module's own statements bind, in blocks too."""
    found = set[str]()
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def test_what_tests_and_benchmarks_import_exists() -> None:
    missing = []
    for path in sorted(p for name in ("tests", "benchmarks") for p in (ROOT / name).rglob("*.py")):
        for node in nodes_of(path):
            if not isinstance(node, ast.ImportFrom) or node.level or not node.module:
                continue
            place = ROOT.joinpath(*node.module.split("."))
            # Packages gather modules, some of them compiled.
            if node.module.startswith("vllm_lite.") and not place.is_dir():
                held = _names(place.with_suffix(".py"))
                wanted = (alias.name for alias in node.names if alias.name not in held)
                missing += [f"{path.relative_to(ROOT)}: {node.module}.{n}" for n in wanted]
    assert not missing


def test_public_names_are_pinned() -> None:
    import vllm_lite

    assert set(vllm_lite.__all__) == {
        "LLM",
        "AsyncEngineArgs",
        "AsyncLLM",
        "CompletionOutput",
        "EngineArgs",
        "PoolingParams",
        "RequestOutput",
        "SamplingParams",
        "__version__",
    }
    for name in vllm_lite.__all__:
        assert getattr(vllm_lite, name) is not None
