"""From the words a user typed to words that argparse understands.

Turns underscores into dashes, a YAML file into flags, and dotted keys (`--hf-overrides.a 1`)
into one JSON object. Knows options only by their spellings.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vllm_lite.config.options.option import Option
from vllm_lite.config.values import Json, json_value
from vllm_lite.errors import UsageError
from vllm_lite.log import init_logger

logger = init_logger(__name__)

_FLAG = re.compile(r"--[A-Za-z][^.=]*")
# Before a file's value as one word of JSON; no shell can type it.
JSON_MARK = "\0"
# The parser's own, which are no options.
_OWN = ("--config", "--help")


def spellings_of(entries: Iterable[Option]) -> dict[str, Option]:
    """Every way to write each option: its flag, its aliases and, for booleans, --no-flag."""
    found: dict[str, Option] = {}
    for entry in entries:
        for name in (entry.flag, *entry.rules.get("aliases", ())):
            found[name] = entry
        if entry.kind.types == (bool,):
            found[f"--no-{entry.flag[2:]}"] = entry
    return found


def find_option(name: str, spellings: Mapping[str, Option]) -> Option | None:
    """The option that `name` spells, or abbreviates without doubt; else None."""
    names = _matches(name, spellings)
    return spellings.get(names[0]) if len(names) == 1 else None


def without_abbreviations(argv: Sequence[str], spellings: Mapping[str, Option]) -> list[str]:
    """`argv` with abbreviated names written in full; raises UsageError where in doubt."""
    words = []
    for word in argv:
        match = _FLAG.match(word)
        names = _matches(match[0], spellings) if match else []
        if match is None or not names:
            words.append(word)
            continue
        if len(names) > 1:
            raise UsageError(f"ambiguous option: {match[0]} could match {', '.join(names)}")
        words.append(names[0] + word[len(match[0]) :])
    return words


def _matches(name: str, spellings: Mapping[str, Option]) -> list[str]:
    """The spellings that start with `name`, or `name` itself."""
    if name in spellings or not name.startswith("--"):
        return [name]
    flags = [flag for flag in spellings if flag.startswith(name)]
    # What is deprecated must not come between a user and what he means.
    current = [flag for flag in flags if spellings[flag].level != "deprecated"]
    own = [flag for flag in _OWN if flag.startswith(name)]
    return (current or flags) + own


def with_dashes(argv: Sequence[str]) -> list[str]:
    """`--max_num_seqs=4` as `--max-num-seqs=4`; values and JSON keys keep their underscores."""
    return [
        _FLAG.sub(lambda match: match[0].replace("_", "-"), word, count=1)
        if _FLAG.match(word)
        else word
        for word in argv
    ]


def expand_level(argv: Sequence[str], spellings: Mapping[str, Option]) -> list[str]:
    """`-O3`, `-O=3` and `-O 3` as --optimization-level; `-O.key` and `-O {...}` as its JSON."""
    if "--optimization-level" not in spellings:
        return list(argv)
    words: list[str] = []
    for word, after in zip(argv, [*argv[1:], ""], strict=False):
        rest = word[2:].removeprefix("=")
        if not word.startswith("-O") or (rest and rest[0] not in ".{0123456789"):
            words.append(word)
        elif rest.startswith("."):
            words.append(f"--compilation-config{rest}")
        else:
            is_json = (rest or after).startswith("{")
            words.append("--compilation-config" if is_json else "--optimization-level")
            words += [rest] if rest else []
    return words


def repeated(argv: Sequence[str], spellings: Mapping[str, Option]) -> list[str]:
    """The flags of options that stand in `argv` more than once."""
    seen: set[str] = set()
    twice: dict[str, None] = {}
    for word in argv:
        name, _, _ = word.partition("=")
        entry = find_option(name, spellings) if name.startswith("-") else None
        if entry is not None and not entry.rules.get("repeatable"):
            if entry.flag in seen:
                twice[entry.flag] = None
            seen.add(entry.flag)
    return list(twice)


def merge_dotted(argv: Sequence[str], spellings: Mapping[str, Option]) -> list[str]:
    """`argv` with the dotted words of each JSON option merged into one object at its end.

    `--opt.a.b v` and `--opt.a.b=v` set a key; `--opt.list+ x,y` appends to a list.
    """
    words = list(argv)
    rest: list[str] = []
    objects: dict[str, Json] = {}
    while words:
        word = words.pop(0)
        head, equals, value = word.partition("=")
        flag, dot, key = head.partition(".")
        entry = find_option(flag, spellings) if dot and flag.startswith("-") else None
        if entry is None or dict not in entry.kind.types:
            rest.append(word)
            continue
        if not equals:
            if not words or words[0].startswith("--"):
                raise UsageError(f"{head} needs a value")
            value = words.pop(0)
        _put(objects.setdefault(entry.flag, {}), head, key.split("."), value)
    for flag, merged in objects.items():
        rest += [flag, json.dumps(merged)]
    return rest


def _put(target: Json, head: str, path: list[str], text: str) -> None:
    if not all(path):
        raise UsageError(f"{head} has an empty key")
    *parents, last = path
    for parent in parents:
        target = target.setdefault(parent, {})
        if not isinstance(target, dict):
            raise UsageError(f"{head} sets a key of something that is not an object")
    if not last.endswith("+"):
        target[last] = json_value(text)
        return
    items = target.setdefault(last[:-1], [])
    if not isinstance(items, list):
        raise UsageError(f"{head} appends to something that is not a list")
    items += [json_value(item) for item in text.split(",")]


def take_config_file(argv: Sequence[str]) -> tuple[list[str], str | None]:
    """`argv` without --config, and the file it names (the last one wins)."""
    rest: list[str] = []
    file: str | None = None
    words = iter(argv)
    for word in words:
        if word == "--config":
            file = next(words, "")
        elif word.startswith("--config="):
            file = word.partition("=")[2]
        else:
            rest.append(word)
            continue
        if not file:
            raise UsageError("--config needs a YAML file")
    return rest, file


def read_config_file(file: str, spellings: Mapping[str, Option]) -> tuple[list[str], str | None]:
    """The flags and the `model` of a YAML file; raises UsageError."""
    if not file.endswith((".yaml", ".yml")):
        raise UsageError(f"--config {file}: give a file that ends in .yaml or .yml")
    # Imported here: most commands read no file.
    import yaml

    try:
        text = Path(file).read_text()
        content = yaml.safe_load(text)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except OSError as error:
        raise UsageError(f"--config {file}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"--config {file} is not valid YAML: {_fault(error)}") from None
    if content is None:
        return [], None
    if not isinstance(content, dict):
        raise UsageError(f"--config {file} must hold keys and values, one option a line")
    keys = Counter(str(key.value) for key, _ in (root.value if root else ()))
    for key in (key for key, count in keys.items() if count > 1):
        logger.warning("Found duplicate key %s in %s; the last one counts", key, file)
    model = content.pop("model", None)
    if isinstance(model, list | dict):
        raise UsageError(f"--config {file}: model must be one name")
    try:
        flags = [w for key, value in content.items() for w in _words(str(key), value, spellings)]
    except (ValueError, RecursionError):
        raise UsageError(
            f"--config {file}: a value holds itself, or is nested too deeply"
        ) from None
    return flags, None if model is None else str(model)


def _fault(error: Exception) -> str:
    """The fault of a file with its line number, in one line."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return str(error).splitlines()[0]
    return f"line {mark.line + 1}: {getattr(error, 'problem', None) or 'unreadable'}"


def _words(key: str, value: Any, spellings: Mapping[str, Option]) -> list[str]:
    (flag,) = with_dashes([f"--{key}"])
    if "." in flag:
        return [f"{flag}={json.dumps(value)}"]
    entry = spellings.get(flag)
    if value is True and (entry is None or entry.kind.types == (bool,)):
        return [flag]
    if value is True and entry is not None and entry.rules.get("bare"):
        return [f"{flag}={JSON_MARK}true"]
    if value is False:
        return [f"--no-{flag[2:]}"]
    if isinstance(value, list):
        if not value and entry is not None and not entry.default:
            return []
        items = [_text(item) for item in value]
        if entry is None:
            return [flag, *items]
        if entry.rules.get("json"):
            return [flag, json.dumps(value)]
        # One word, so that nothing in it is read as a flag, and nothing after it as an item.
        return [f"{flag}={JSON_MARK}{json.dumps(items)}"]
    return [f"{flag}={_text(value)}"]


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)
