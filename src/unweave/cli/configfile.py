"""Where the values of the settings come from: the flag, else the file, else the default."""

from __future__ import annotations

import argparse
import difflib
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unweave.cli import kinds
from unweave.cli.kinds import Kind
from unweave.cli.settings import SECTIONS, SETTINGS, Setting
from unweave.errors import ConfigError

DEFAULT_FILE = "unweave.toml"
TAKEN_BACK = object()
"""What an empty flag (``--val=``) stands for: as if the file did not have the setting."""


@dataclass(frozen=True)
class Values:
    """The values of the settings. Paths are ready to use: relative to the file if from there, else to where we are."""

    values: Mapping[tuple[str, str], Any]
    file: Path | None
    """The file they were read from; None where there is none."""

    def get(self, section: str, key: str) -> Any:
        """The value of a setting, or its default."""
        return self.values[section, key]

    def require(self, section: str, key: str) -> Any:
        """The value of a setting that must be there.

        Raises:
            ConfigError: it is neither in the file nor given as a flag.
        """
        value = self.get(section, key)
        if value is not None:
            return value
        setting = next(s for s in SETTINGS if (s.section, s.key) == (section, key))
        where = f"in {self.file}" if self.file else f"and there is no {DEFAULT_FILE} here ('unweave init' writes one)"
        raise ConfigError(f"{setting} is not set {where}. Set it there, or pass {setting.flag}: {setting.meaning}.")

    def given(self, settings: Iterable[Setting]) -> dict[str, Any]:
        """Those of some settings that have a value, by key."""
        found = {s.key: self.get(s.section, s.key) for s in settings}
        return {key: value for key, value in found.items() if value is not None}

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Every setting that has a value, by section: what the command can be run from again."""
        sections: dict[str, dict[str, Any]] = {}
        for (section, key), value in self.values.items():
            if value is not None:
                sections.setdefault(section, {})[key] = str(value) if isinstance(value, Path) else value
        return sections


def add_flags(parser: argparse.ArgumentParser, command: str) -> None:
    """Give a command ``--config``, its output switches, and a flag for every setting it uses."""
    parser.add_argument(
        "--config", metavar="PATH", help=f"the settings (default: ./{DEFAULT_FILE}); a flag wins over it"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object on stdout")
    parser.add_argument("--quiet", action="store_true", help="no progress bar and no table; warnings alone")
    for section in SECTIONS:
        used = [s for s in SETTINGS if s.section == section and command in s.used_by]
        group = parser.add_argument_group(f"settings of [{section}]") if used else None
        for setting in used:
            assert group is not None
            _add_flag(group, setting)


def _add_flag(group: Any, setting: Setting) -> None:
    text = setting.meaning.replace("%", "%%")
    if setting.kind is kinds.SWITCH:
        group.add_argument(setting.flag, dest=setting.dest, action=argparse.BooleanOptionalAction, help=text)
    elif setting.kind is kinds.ARGUMENTS:
        parse = _flag_type(setting.kind)
        group.add_argument(setting.flag, dest=setting.dest, action="append", metavar="KEY=VALUE", type=parse, help=text)
    else:
        group.add_argument(setting.flag, dest=setting.dest, metavar="…", type=_flag_type(setting.kind), help=text)


def _flag_type(kind: Kind) -> Callable[[str], object]:
    def parse(text: str) -> object:
        if text == "":
            return TAKEN_BACK
        try:
            return kind.parse(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r}. Supported: {kind.words}.") from None

    return parse


def read_values(arguments: argparse.Namespace) -> Values:
    """Put flags, file and defaults together.

    Raises:
        ConfigError: a file that is missing (if named), not TOML, or holds an unknown key or a value of another kind.
    """
    file = Path(arguments.config or DEFAULT_FILE)
    there = bool(arguments.config) or file.exists()
    table = _checked(file, _parsed(file)) if there else {}
    flags = vars(arguments)
    values = {}
    for setting in SETTINGS:
        from_file = table.get(setting.section, {}).get(setting.key)
        values[setting.section, setting.key] = _choose(setting, flags.get(setting.dest), from_file, file.parent)
    return Values(values, file if there else None)


def _choose(setting: Setting, flag: Any, from_file: Any, folder: Path) -> Any:
    """The flag, else the file, else the default; a path relative to the place it was given in."""
    if setting.kind is kinds.ARGUMENTS:
        merged = dict(from_file or {})
        for part in flag or []:
            merged = {} if part is TAKEN_BACK else {**merged, **part}
        return merged or None
    if flag is not None and flag is not TAKEN_BACK:
        return _placed(setting, flag, Path())
    value = setting.default if from_file is None or flag is TAKEN_BACK else from_file
    return value if value is None else _placed(setting, value, folder)


def _placed(setting: Setting, value: Any, folder: Path) -> Any:
    if setting.kind is kinds.PATH or (setting.kind is kinds.SOURCE and not is_function(value)):
        return folder / Path(value).expanduser()
    return value


def is_function(text: str) -> bool:
    """Whether a setting names a function, ``package.module:function``, rather than a path."""
    module, colon, name = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *name.split(".")))


def _parsed(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"Cannot read the settings {file}: {error.strerror}. Write one with 'unweave init', or pass --config."
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not text in UTF-8 (byte {error.start}). Save it as UTF-8.") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}. Correct that line.") from error


def _checked(file: Path, table: dict[str, Any]) -> dict[str, Any]:
    for section, content in table.items():
        if section not in SECTIONS or not isinstance(content, dict):
            raise ConfigError(f"Unknown section or key {section!r} in {file}.{nearest(section, SECTIONS)}")
        known = {setting.key: setting for setting in SETTINGS if setting.section == section}
        for key, value in content.items():
            if key not in known:
                raise ConfigError(f"Unknown key {key!r} in [{section}] of {file}.{nearest(key, known)}")
            if not known[key].kind.fits(value):
                raise ConfigError(f"Invalid {known[key]} in {file}: {value!r}. Supported: {known[key].kind.words}.")
    return table


def nearest(word: str, known: Iterable[str], shown: int = 30) -> str:
    """A hint: the most similar of the known words, and all of them where they are not too many."""
    names = list(known)
    more = f", … ({len(names)} in all)" if len(names) > shown else ""
    return f"{did_you_mean(word, names)} Supported: {', '.join(names[:shown])}{more}."


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The first half of that hint; empty where no known word is similar."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""
