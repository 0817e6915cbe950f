"""Check the language of the project: docstrings, words that are avoided, and the number of private functions.

Run by `make lint`, which fails on any finding; `make language` prints the same findings with a count for each folder.
CONTRIBUTING.md says why these rules exist.
"""

import argparse
import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
# A first line that begins so is not a sentence: it only makes sense next to the name of the function.
FRAGMENT = re.compile(r"(What|The same|Of|By|Without|Those)\b")
AVOIDED = "told|tell|tells|hears|whoever|somebody|nobody"
# Also as a part of a name, such as `_tell` or `wasTold`.
AVOIDED_WORD = re.compile(rf"(?<![A-Za-z])(?i:{AVOIDED})(?![a-z])|(?<=[a-z])(?:{AVOIDED.title()})(?![a-z])")
FILE_TELL = ".tell()"  # the method of Python's files
STORED_NAME = "# language: stored name"  # ends a line with a name that is in files or records already
MAX_LINE = 120
SUFFIXES = frozenset({".py", ".js", ".html", ".lua", ".md", ".m", ".R", ".ipynb"})
# Private functions per 1,000 lines, at most. Many of them with one caller each hide what a module does. The goal is 15
# in every package.
MAX_PRIVATE = {"app": 15.0, "ncp_client": 15.0, "solvers": 15.0, "worker": 15.0}
SELF = Path(__file__).relative_to(ROOT)


class Finding(NamedTuple):
    """One line that breaks a rule."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def tracked_files() -> list[Path]:
    """Return the files of the project that have prose in them, relative to its root; links are left out."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    paths = [Path(name) for name in listed if Path(name).suffix in SUFFIXES]
    return [path for path in paths if path != SELF and (ROOT / path).is_file() and not (ROOT / path).is_symlink()]


def check_words(path: Path, text: str) -> Iterator[Finding]:
    """Yield the lines with an avoided word, in code, comments and prose alike."""
    for number, line in enumerate(text.splitlines(), start=1):
        if line.endswith(STORED_NAME):
            continue
        for match in AVOIDED_WORD.finditer(line.replace(FILE_TELL, "")):
            yield Finding(path, number, f"avoid the word {match.group()!r}")


def check_docstrings(path: Path, tree: ast.Module) -> Iterator[Finding]:
    """Yield docstrings whose first line cannot stand alone, and their lines that are too long."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        docstring = ast.get_docstring(node, clean=False)
        if docstring is None:
            continue
        first = node.body[0].lineno
        lines = docstring.splitlines()
        if lines and (match := FRAGMENT.match(lines[0].strip())):
            yield Finding(path, first, f"begin the docstring with a verb or a noun, not with {match.group()!r}")
        for number, line in enumerate(lines, start=first):
            if len(line) > MAX_LINE:
                yield Finding(path, number, f"docstring line of {len(line)} characters, at most {MAX_LINE}")


def is_private_function(node: ast.AST) -> bool:
    """Return whether a node defines a function or method with one leading underscore."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return node.name.startswith("_") and not node.name.startswith("__")


def main(arguments: list[str] | None = None) -> int:
    """Print every finding and the packages with too many private functions; return 1 if a rule is broken."""
    parser = argparse.ArgumentParser(description="Check the language of the project.")
    parser.add_argument("folders", nargs="*", help="only these folders or files; by default the whole project")
    parser.add_argument("--summary", action="store_true", help="count the findings of each folder, and exit with 0")
    options = parser.parse_args(arguments)
    wanted = [Path(name) for name in options.folders]
    findings: list[Finding] = []
    lines: Counter[str] = Counter()
    private: Counter[str] = Counter()
    for path in tracked_files():
        if wanted and not any(path.is_relative_to(folder) for folder in wanted):
            continue
        text = (ROOT / path).read_text(encoding="utf-8")
        findings += check_words(path, text)
        if path.suffix == ".py":
            tree = ast.parse(text)
            findings += check_docstrings(path, tree)
            lines[path.parts[0]] += len(text.splitlines())
            private[path.parts[0]] += sum(map(is_private_function, ast.walk(tree)))
    too_many = []
    for package, limit in ((package, limit) for package, limit in MAX_PRIVATE.items() if lines[package]):
        ratio = 1000 * private[package] / lines[package]
        counted = f"{package}: {private[package]} private functions in {lines[package]} lines, {ratio:.1f} per 1,000"
        if ratio > limit:
            too_many.append(f"{counted}; merge those with one caller until there are {limit:g}")
        elif options.summary:
            print(counted)
    for line in [*map(str, findings), *too_many]:
        print(line)
    if options.summary:
        for folder, count in Counter(finding.path.parts[0] for finding in findings).most_common():
            print(f"{folder}: {count} findings")
        return 0
    return 1 if findings or too_many else 0


if __name__ == "__main__":
    sys.exit(main())
