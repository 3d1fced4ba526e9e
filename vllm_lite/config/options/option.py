"""One option: type, default, help, range and support in this build.

`@config` makes a frozen dataclass whose fields are declared with `option(...)`; the command
line, EngineArgs, the help text and the docs are derived from them. Every instance is
checked, so no reader checks again. Knows no particular option.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from functools import cache
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    NamedTuple,
    TypedDict,
    TypeVar,
    Union,
    Unpack,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from vllm_lite.config.values import Json, JsonView
from vllm_lite.errors import NotInBuildError, UsageError

T = TypeVar("T")
Becomes = Callable[[Any], JsonView]

# What this build does with an option: `full`, its effect; `partial`, that of some values;
# `idle`, nothing, which a line says when it is set; `absent`, it refuses all that would matter;
# `deprecated`, it warns and uses what replaced it, if anything did.
Level = Literal["full", "partial", "idle", "absent", "deprecated"]


class Rules(TypedDict, total=False):
    """Further arguments of `option`."""

    # How an absent value is found; the flat view then has None as its default.
    auto: str
    # Other spellings of the flag, with their dashes.
    aliases: tuple[str, ...]
    # The values a user may write; default: those of a Literal type.
    choices: tuple[Any, ...]
    ge: float
    gt: float
    le: float
    # A number may be inf, which means without limit.
    infinite: bool
    # Accepts 4k, 25.6k, 2G; `words` are further spellings of a number, such as auto.
    human: bool
    words: dict[str, int]
    # A list is written as one JSON text, not as several words.
    json: bool
    # The flag may stand more than once; each adds to the list.
    repeatable: bool
    # The flag may stand bare and then means True.
    bare: bool
    # `full` unless it is said here, or follows from `works`, `deprecated` or `retired`.
    level: Literal["absent", "idle"]
    # The values this build can honour; others are refused with `remedy`. An absent option
    # honours its default, None, False and what is empty too.
    works: tuple[Any, ...]
    # What to do instead of using a value or an option that is not there.
    remedy: str
    # Why an idle option changes nothing.
    why: str
    # Why an option that counts on a GPU changes nothing where the model runs on a CPU.
    on_cpu: str
    # What to use instead of this option; setting it warns.
    deprecated: str
    # Why the option changes nothing any more; setting it warns.
    retired: str
    # What a deprecated option's value sets instead: names, with keys after a dot, and values.
    becomes: Becomes
    # In a class that is one JSON option: the name that this key has as an option of its own.
    alone: str
    # Never shown in a repr or a log.
    secret: bool
    # The help group, where it is not the class's own.
    group: str


_KEY = "option"
# Where whole numbers end between processes.
_INT64 = 1 << 63
_KIND_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    list: "a list",
    dict: "a JSON object",
}


class Kind(NamedTuple):
    """A type hint taken apart: the Python types of a value, of a list's item, and choices."""

    types: tuple[type, ...]
    item: type | None
    optional: bool
    choices: tuple[Any, ...]


class JsonOption(NamedTuple):
    """A class whose fields are the keys of one JSON option states it as its JSON_OPTION."""

    name: str
    help: str
    aliases: tuple[str, ...] = ()
    # The help group, where it is not that of the class it is part of.
    group: str = ""


@dataclass(frozen=True, slots=True)
class Option:
    """One declared option. `flag` is its long command-line spelling."""

    name: str
    group: str
    help: str
    kind: Kind
    # What the resolved config starts from, and what the flat view shows (None if derived).
    default: Any
    flat_default: Any
    rules: Rules
    # The flag that this option is a key of.
    parent: str = ""
    # The keys of this JSON option.
    keys: tuple[Option, ...] = ()

    @property
    def flag(self) -> str:
        return f"{self.parent}.{self.name}" if self.parent else "--" + self.name.replace("_", "-")

    @property
    def choices(self) -> tuple[Any, ...]:
        return self.rules.get("choices") or self.kind.choices

    @property
    def level(self) -> Level:
        """The option's support in this build."""
        if "deprecated" in self.rules or "retired" in self.rules:
            return "deprecated"
        if self.keys:
            levels = {entry.level for entry in self.keys}
            return levels.pop() if len(levels) == 1 else "partial"
        return self.rules.get("level") or ("partial" if "works" in self.rules else "full")

    def check(self, value: Any) -> None:
        """Raise a UsageError that names the option unless `value` is allowed.

        An allowed value that this build lacks raises NotInBuildError.
        """
        if value is None and self.kind.optional:
            return
        if value == math.inf and self.rules.get("infinite"):
            return
        if not _is_a(value, self.kind):
            wanted = " or ".join(_KIND_NAMES[kind] for kind in self.kind.types)
            raise UsageError(f"{self.flag} must be {wanted}, not {value!r}")
        for item in value if isinstance(value, list) else (value,):
            if self.choices and item not in self.choices:
                listed = ", ".join(str(choice) for choice in self.choices if choice is not None)
                raise UsageError(f"{self.flag} must be one of {listed}, not {item!r}")
        self._check_range(value)
        if self.keys:
            self._check_keys(value)
        if not self.is_available(value):
            shown = "" if value is True else f" {value}"
            raise NotInBuildError(
                f"{self.flag}{shown} is not available in this build; {self.rules['remedy']}"
            )

    def is_available(self, value: Any) -> bool:
        """Whether this build does what the allowed `value` asks for."""
        works = self.rules.get("works")
        if self.keys:
            return True  # each key answers for itself
        if self.level != "absent":
            return works is None or value in works
        if isinstance(value, dict) and isinstance(self.default, dict) and self.default:
            return all(key in self.default and self.default[key] == value[key] for key in value)
        is_off = value is False and not self.default
        return is_off or value in (None, self.default, "", [], {}) or value in (works or ())

    def _check_keys(self, value: JsonView) -> None:
        known = {entry.name: entry for entry in self.keys}
        for key, item in value.items():
            if key not in known:
                raise UsageError(f"{self.flag} has no key {key!r}; its keys are {', '.join(known)}")
            known[key].check(item)

    def _check_range(self, value: Any) -> None:
        if isinstance(value, int) and not -_INT64 <= value < _INT64:
            raise UsageError(f"{self.flag} must fit in 64 bits, unlike {value}")
        ge, gt, le = (self.rules.get(key) for key in ("ge", "gt", "le"))
        if ge is None and gt is None and le is None:
            return
        low = -math.inf if ge is None else ge
        high = math.inf if le is None else le
        if not low <= value <= high or (gt is not None and not value > gt):
            bounds = [] if ge is None else [f"at least {ge}"]
            bounds += [] if gt is None else [f"greater than {gt}"]
            bounds += [] if le is None else [f"at most {le}"]
            raise UsageError(f"{self.flag} must be {' and '.join(bounds)}, not {value}")


def option(default: Any, help: str, **rules: Unpack[Rules]) -> Any:
    """Declare a field of a @config class; a list or dict default is copied per instance."""
    metadata = {_KEY: (help, rules)}
    shown = not rules.get("secret", False)
    if isinstance(default, list | dict):
        make = default.copy
        return field(default_factory=make, repr=shown, metadata=metadata)
    return field(default=default, repr=shown, metadata=metadata)


# `option` is no field specifier to type checkers: any value on the right is a default to them.
@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def config(cls: type[T]) -> type[T]:
    """Make `cls` a frozen, keyword-only dataclass that checks its options when it is made."""
    declared: type = cls
    cross_check = cls.__dict__.get("__post_init__")

    def check(self: Any) -> None:
        for entry in options(declared):
            entry.check(getattr(self, entry.name))
        if cross_check is not None:
            cross_check(self)

    cls.__post_init__ = check  # type: ignore[attr-defined]
    return dataclass(frozen=True, kw_only=True)(cls)


@cache
def options(cls: type) -> tuple[Option, ...]:
    """The options that `cls` itself declares, in order."""
    hints = get_type_hints(cls)
    whole: JsonOption | None = getattr(cls, "JSON_OPTION", None)
    parent = "--" + whole.name.replace("_", "-") if whole else ""
    return tuple(
        _make_option(group_of(cls), entry, hints[entry.name], parent)
        for entry in fields(cls)
        if _KEY in entry.metadata
    )


def group_of(cls: type) -> str:
    """The help group of a @config class: its name, or the GROUP it states."""
    return str(getattr(cls, "GROUP", cls.__name__))


@cache
def sections(cls: type) -> dict[str, type]:
    """The fields of `cls` that are @config classes with options: name to class."""
    hints = get_type_hints(cls)
    found: dict[str, type] = {entry.name: hints[entry.name] for entry in fields(cls)}
    return {name: part for name, part in found.items() if _is_config(part)}


def _is_config(cls: type) -> bool:
    return is_dataclass(cls) and bool(_rows(cls) or options(cls))


@cache
def option_table(cls: type) -> Mapping[str, Option]:
    """Every option of `cls` and its sections by name; a name stands only once in a tree."""
    table: dict[str, Option] = {}
    for entry in _walk(cls):
        if entry.name in table:
            raise TypeError(f"the option {entry.name} is declared twice under {cls.__name__}")
        table[entry.name] = entry
    return table


def _walk(cls: type) -> list[Option]:
    found: list[Option] = []
    for section in sections(cls).values():
        whole: JsonOption | None = getattr(section, "JSON_OPTION", None)
        entries = _walk(section)
        found += json_option(whole, whole.group or group_of(cls), entries) if whole else entries
    found += options(cls)
    return [*found, *_rows(cls)]


def _rows(cls: type) -> list[Option]:
    """The options of `cls` that have no field, as it states them in ROWS."""
    return [row for base in reversed(cls.__mro__) for row in vars(base).get("ROWS", ())]


def json_option(whole: JsonOption, group: str, keys: Sequence[Option]) -> list[Option]:
    """A JSON option of `keys`, after those of them that are options of their own, too."""
    alone = [replace(k, name=k.rules["alone"], parent="") for k in keys if "alone" in k.rules]
    kind = Kind((dict,), None, True, ())
    rules = Rules(aliases=whole.aliases)
    own = Option(whole.name, group, whole.help, kind, {}, {}, rules, keys=tuple(keys))
    return [*alone, own]


def make(cls: type[T], values: JsonView, **given: Any) -> T:
    """A `cls` of flat values and of fields that are `given`; what is in neither is the default.

    A key that is an option of its own wins over the same key of the JSON. Raises UsageError.
    """
    declared: type = cls
    whole: JsonOption | None = getattr(cls, "JSON_OPTION", None)
    given |= dict(values.get(whole.name) or {}) if whole else {}
    rows = _rows(cls)
    for entry in (*options(declared), *rows):
        name = entry.name if whole is None else entry.rules.get("alone", "")
        if name in values:
            given[entry.name] = values[name]
    for row in rows:
        if row.name in given:
            row.check(given.pop(row.name))
    parts: Json = {name: make(part, values) for name, part in sections(declared).items()}
    return cls(**parts, **given)


def _make_option(group: str, entry: Field[Any], hint: Any, parent: str) -> Option:
    help_text, rules = entry.metadata[_KEY]
    default = entry.default
    if default is MISSING and entry.default_factory is not MISSING:
        default = entry.default_factory()
    return Option(
        name=entry.name,
        group=rules.get("group", group),
        help=help_text,
        kind=_kind_of(hint),
        default=default,
        flat_default=None if "auto" in rules else default,
        rules=rules,
        parent=parent,
    )


def _kind_of(hint: Any) -> Kind:
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    types: list[type] = []
    item: type | None = None
    choices: tuple[Any, ...] = ()
    for part in parts:
        origin = get_origin(part)
        if origin is Literal:
            choices = get_args(part)
            types += {type(choice): None for choice in choices}
        elif origin is list:
            item = get_args(part)[0]
            if get_origin(item) is Literal:
                choices = get_args(item)
                item = type(choices[0])
            types.append(list)
        elif part is not NoneType:
            types.append(origin or part)
    return Kind(tuple(types), item, NoneType in parts, choices)


def _is_a(value: Any, kind: Kind) -> bool:
    # True is an int to Python, and an int is as good as a float to a user.
    if isinstance(value, bool):
        return bool in kind.types
    if isinstance(value, int) and float in kind.types:
        return True
    if isinstance(value, float) and not math.isfinite(value):
        return False
    if isinstance(value, list) and kind.item is not None:
        wanted = object if kind.item is Any else kind.item
        return list in kind.types and all(isinstance(item, wanted) for item in value)
    return isinstance(value, kind.types)
