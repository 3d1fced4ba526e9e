"""Fields of @config classes to a command line, and its words back to their values.

One parser for any set of classes: nothing here names an option but --config, --help and the
model. Values come back as plain dicts that hold only what the user set.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from vllm_lite import envs
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.options.argv import (
    JSON_MARK,
    expand_level,
    merge_dotted,
    read_config_file,
    repeated,
    spellings_of,
    take_config_file,
    with_dashes,
    without_abbreviations,
)
from vllm_lite.config.options.deprecation import warn_of_idle, without_deprecated
from vllm_lite.config.options.help import groups_of, help_text
from vllm_lite.config.options.option import Option, make, option_table
from vllm_lite.config.server import ServerConfig
from vllm_lite.config.values import Json, human_int, json_of, json_or_text
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.errors import NotInBuildError, UsageError, nearest
from vllm_lite.log import init_logger

logger = init_logger(__name__)

# So many fit on a screen; a command with more shows their groups first.
_FEW_OPTIONS = 12


class Parsed(NamedTuple):
    """A parsed command line: loose words, the file's `model`, and each class's values."""

    words: list[str]
    file_model: str | None
    values: list[Json]


class OptionParser(argparse.ArgumentParser):
    """The command line of the options of `classes`.

    A mistake in it ends the process with the usage line on stderr and exit code 2.
    """

    def __init__(
        self,
        prog: str,
        usage: str,
        description: str,
        classes: Sequence[type],
        *,
        examples: Sequence[str] = (),
    ) -> None:
        super().__init__(prog=prog, usage=f"{prog} {usage}", add_help=False, allow_abbrev=False)
        self._examples = examples
        self.description = description
        self._classes = classes
        self.entries = [entry for cls in classes for entry in option_table(cls).values()]
        self._spellings = spellings_of(self.entries)
        for entry in self.entries:
            add_option(self, entry)

    def option_of(self, spellings: Sequence[str]) -> Option | None:
        """The option that the first of `spellings` is one of."""
        return self._spellings.get(spellings[0]) if spellings else None

    def parse(self, argv: Sequence[str], most: int | None = None) -> Parsed:
        """Read `argv` and the --config file it may name; prints help and exits on --help.

        More than `most` loose words are a mistake.
        """
        words = with_dashes(expand_level(argv, self._spellings))
        self._help_if_asked(words)
        try:
            words, file = take_config_file(words)
            words = without_abbreviations(words, self._spellings)
            for flag in repeated(words, self._spellings):
                logger.warning("Found duplicate keys %s; the last one counts", flag)
            from_file, file_model = read_config_file(file, self._spellings) if file else ([], None)
            # The file's flags come first, so those of the command line win.
            words = merge_dotted([*from_file, *words], self._spellings)
        except UsageError as error:
            self.error(str(error))
        namespace, loose = self.parse_known_args(words)
        self._refuse_unknown(loose)
        if most is not None and len(loose) > most:
            self.error(f"unrecognized arguments: {' '.join(loose[most:])}")
        given = vars(namespace)
        values = [
            self._checked(cls, {name: given[name] for name in option_table(cls) if name in given})
            for cls in self._classes
        ]
        return Parsed(loose, file_model, values)

    def _checked(self, cls: type, given: Json) -> Json:
        """`given` with deprecated options replaced; exits where this build lacks one."""
        table = option_table(cls)
        try:
            values = without_deprecated(given, table)
        except NotInBuildError as error:
            self.error(str(error))
        for name, value in values.items():
            try:
                table[name].check(value)
            except NotInBuildError as error:
                self.error(str(error))
            except UsageError:
                pass  # A value that makes no sense anywhere: the config says so when it is made.
        # An engine's config tells of its own, for those who make it without a command line.
        if cls is not VllmConfig:
            warn_of_idle(values, table)
        return values

    def parse_options(self, argv: Sequence[str]) -> list[Json]:
        """Each class's values, for a command that takes options and no other words."""
        _, file_model, values = self.parse(argv, 0)
        if file_model is not None:
            self.error(f"the --config file names a model, {file_model}; this command loads none")
        return values

    def parse_words(
        self, argv: Sequence[str], least: int, most: int | None
    ) -> tuple[list[str], list[Json]]:
        """From `least` to `most` loose words, as the usage line names them, and the values."""
        words, file_model, values = self.parse(argv, most)
        words = words or ([file_model] if file_model else [])
        if len(words) < least:
            missing = (self.usage or "").removeprefix(self.prog).split()[len(words)]
            self.error(f"the following arguments are required: {missing}")
        return words, values

    def _refuse_unknown(self, loose: Sequence[str]) -> None:
        unknown = [word for word in loose if word.startswith("-")]
        if not unknown:
            return
        names = [word.partition("=")[0].partition(".")[0] for word in unknown]
        close = [nearest(name, self._spellings) for name in names]
        hints = " ".join(name for name in close if name)
        text = f"unrecognized arguments: {' '.join(unknown)}"
        self.error(f"{text} (did you mean {hints}?)" if hints else text)

    def _help_if_asked(self, argv: Sequence[str]) -> None:
        for word in argv:
            name, _, topic = word.partition("=")
            if name in ("-h", "--help"):
                try:
                    text = self.help(topic)
                except UsageError as error:
                    self.error(str(error))
                _show(text, paged=topic.lower() == "page")
                sys.exit(0)

    def help(self, topic: str = "") -> str:
        """The help text on a topic; "" is the usage line with a summary, or with all of a few."""
        about = groups_of(self.entries, self._classes)
        examples = "".join(f"  {line}\n" for line in self._examples)
        examples = f"\nExamples:\n{examples}" if examples else ""
        if not topic and not self.entries:
            return f"usage: {self.usage}\n\n{self.description}\n{examples}"
        is_short = len(self.entries) <= _FEW_OPTIONS
        text = help_text("all" if is_short and not topic else topic, self.entries, about)
        if topic:
            return text
        config = "  --config FILE  YAML file of options; those of the command line win\n"
        return f"usage: {self.usage}\n\n{self.description}\n\n{text}\n{config}{examples}"

    def error(self, message: str) -> NoReturn:
        """Print usage and `message` to stderr and exit with code 2."""
        self.exit(2, f"usage: {self.usage}\n{self.prog}: error: {message}\n")


def _show(text: str, paged: bool) -> None:
    if paged:
        import pydoc  # finds the user's pager, and prints where there is no terminal

        pydoc.pager(text)
    else:
        sys.stdout.write(text)


def add_option(parser: argparse.ArgumentParser, entry: Option) -> None:
    """Have `parser` read an option; a value that was not given is left out of its namespace."""
    names = [*entry.rules.get("aliases", ()), entry.flag]
    settings: Json = {"dest": entry.name, "default": argparse.SUPPRESS}
    types = entry.kind.types
    if types == (bool,):
        parser.add_argument(*names, action=argparse.BooleanOptionalAction, **settings)
        return
    if list in types and not entry.rules.get("json"):
        is_repeatable = entry.rules.get("repeatable", False)
        settings |= {"nargs": "+", "action": _Items, "is_repeatable": is_repeatable}
    if entry.rules.get("bare"):
        settings |= {"nargs": "?", "const": True}
    parser.add_argument(*names, type=_reader(entry), **settings)


class _Items(argparse.Action):
    """Sets a list, or adds to one that is repeatable; a file's list is one word that is a list."""

    def __init__(self, *, is_repeatable: bool, **settings: Any) -> None:
        super().__init__(**settings)
        self._is_repeatable = is_repeatable

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        items = values[0] if isinstance(values[0], list) else values
        earlier = getattr(namespace, self.dest, []) if self._is_repeatable else []
        setattr(namespace, self.dest, [*earlier, *items])


def _reader(entry: Option) -> Callable[[str], Any]:
    """The function that reads one word of an option's value."""
    types = entry.kind.types
    read: Callable[[str], Any]
    if dict in types:
        read = json_or_text if str in types else functools.partial(json_of, kind=dict)
    elif list in types:
        item = entry.kind.item or str
        read = functools.partial(json_of, kind=list) if entry.rules.get("json") else item
    elif entry.rules.get("human"):
        read = functools.partial(human_int, words=entry.rules.get("words"))
    else:
        read = next(kind for kind in types if kind is not bool)

    def convert(text: str) -> Any:
        if text.startswith(JSON_MARK):
            given = json.loads(text[len(JSON_MARK) :])
            return [convert(item) for item in given] if isinstance(given, list) else given
        if entry.kind.optional and text in ("", "None"):
            return None
        try:
            value = read(text)
        except ValueError as error:
            own = f"invalid {read.__name__} value: {text!r}" if isinstance(read, type) else error
            raise argparse.ArgumentTypeError(str(own)) from None
        if entry.choices and value not in entry.choices:
            known = ", ".join(str(choice) for choice in entry.choices if choice is not None)
            raise argparse.ArgumentTypeError(f"invalid choice: {text!r} (choose from {known})")
        return value

    return convert


def serve_parser() -> OptionParser:
    return OptionParser(
        "vllm-lite serve",
        "[MODEL] [options]",
        "Serve MODEL over an OpenAI-compatible HTTP API. MODEL is demo, a directory in Hugging\n"
        "Face's layout, a .gguf file, or the id of a hub repository.",
        (VllmConfig, ServerConfig),
        examples=(
            "vllm-lite serve demo",
            "vllm-lite serve Qwen/Qwen3-0.6B --port 9000 --api-key KEY",
            "vllm-lite serve model.gguf --max-model-len 4k",
            "vllm-lite serve demo --enable-auto-tool-choice --tool-call-parser hermes",
        ),
    )


def parse_serve_args(argv: Sequence[str]) -> tuple[EngineArgs, ServerConfig]:
    """The engine and server options of `vllm-lite serve`'s words (without the command itself).

    Exits with code 2 where they cannot be read; raises UsageError where a server option's
    value makes no sense. The engine's are checked when its config is created.
    """
    parser = serve_parser()
    words, file_model, (engine, server) = parser.parse(argv, 1)
    if "model" in engine:
        logger.warning("Give the model as `vllm-lite serve MODEL`; --model is read the same way")
    if words:
        engine["model"] = words[0]
    elif file_model is not None:
        engine.setdefault("model", file_model)
    if "model" not in engine and "served_model_name" in engine:
        raise UsageError(
            "--served-model-name without a model: put MODEL first, "
            "as in `vllm-lite serve MODEL --served-model-name NAME`"
        )
    if "api_key" not in server and envs.VLLM_API_KEY:
        server["api_key"] = [envs.VLLM_API_KEY]
    return EngineArgs(**engine), make(ServerConfig, server)
