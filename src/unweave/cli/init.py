"""``unweave init``: write a commented file of settings."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path

from unweave.cli.configfile import DEFAULT_FILE
from unweave.cli.settings import SECTIONS, SETTINGS, Setting
from unweave.errors import ConfigError, StoreError

HELP = "Write a commented unweave.toml to fill in."

EXAMPLE = """\
example:
  unweave init                  write ./unweave.toml
  unweave init project/         write project/unweave.toml
  unweave init --force          overwrite the one that is there"""

HEADER = """\
# Settings of unweave. Every setting is also a flag of the command that uses it, and the flag wins.
# Paths in this file are relative to this file. A line that begins with '# ' and a key is off: remove the '# '.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command to argparse."""
    parser.epilog = EXAMPLE
    parser.add_argument("path", nargs="?", default=DEFAULT_FILE, help=f"a file or a folder (default: ./{DEFAULT_FILE})")
    parser.add_argument("--force", action="store_true", help="overwrite a file that is there")


def run(arguments: argparse.Namespace) -> int:
    """Write the file.

    Raises:
        ConfigError: the file is there already (without --force).
        StoreError: it cannot be written.
    """
    path = Path(arguments.path)
    path = path / DEFAULT_FILE if path.is_dir() else path
    try:
        with open(path, "w" if arguments.force else "x", encoding="utf-8") as file:
            file.write(template())
    except FileExistsError as error:
        raise ConfigError(f"{path} is there already. Pass --force to overwrite it, or name another file.") from error
    except OSError as error:
        raise StoreError(f"Cannot write {path}: {error.strerror}. Name a file in a folder you can write to.") from error
    print(f"Wrote {path}. Fill in [model] and [data], then run 'unweave fit'.")
    return 0


def template() -> str:
    """The text of a new file, with every setting in it."""
    sections = []
    for section in SECTIONS:
        lines = [_lines(setting) for setting in SETTINGS if setting.section == section]
        sections.append(f"[{section}]\n" + "".join(lines))
    return HEADER + "\n" + "\n".join(sections)


def _lines(setting: Setting) -> str:
    comment = textwrap.fill(setting.meaning, 100, initial_indent="#   ", subsequent_indent="#   ")
    return f"{comment}\n{'' if setting.shown else '# '}{setting.key} = {setting.sample}\n"
