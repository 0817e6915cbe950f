"""Hooks of mkdocs: pages from outside `docs/`, the generated reference, and links between them.

Used by `make docs`; mkdocs.yml names this file. A page of the site has the path that it has in the repository, without
`docs/`.
"""

import os
import posixpath
import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
OUTSIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/**/*.md", "benchmarks/**/*.png")
INLINE_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
METHODS = ("get", "post", "put", "patch", "delete")
OPENAPI_INTRODUCTION = """\
# HTTP API: all calls and fields

Generated from the server's OpenAPI document, `/openapi.json`. [The HTTP API](http-api.md) shows how the calls work
together. Every call may also answer with 401, 421, 429, 500 or 503, and a [problem](#problem).

## Calls
"""
COMMON_STATUSES = frozenset({"401", "421", "429", "500", "503"})  # any call may answer with these


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in `docs/`, and those that are generated."""
    for pattern in OUTSIDE:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            files.append(File(name, str(ROOT), config.site_dir, config.use_directory_urls))
    generated = {
        "reference/sparse-ncp.md": python_reference("sparse_ncp", "Python package"),
        "reference/ncp-client.md": python_reference("ncp_client", "Python client"),
        "reference/openapi.md": "\n".join(openapi_reference()),
    }
    for name, content in generated.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links that hold in the repository hold in the site; a link to a file of code becomes its text."""
    name = page.file.src_uri
    source = name if (ROOT / name).exists() else f"docs/{name}"

    def relink(link: re.Match[str]) -> str:
        image, text, target = link.groups()
        if re.match(r"\w+:|#", target):
            return link[0]
        path, hash_mark, anchor = target.partition("#")
        in_repository = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        in_site = in_repository.removeprefix("docs/")
        if files.get_file_from_path(in_site) is None and (ROOT / in_repository).exists():
            return text
        return f"{image}[{text}]({os.path.relpath(in_site, posixpath.dirname(name) or '.')}{hash_mark}{anchor})"

    parts = re.split(r"(^```.*?^```)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else INLINE_LINK.sub(relink, part) for part in parts)


def python_reference(package: str, title: str) -> str:
    """Return a page with every public name of a package, rendered from its docstring by mkdocstrings."""
    module = import_module(package)
    source = "sparse_ncp.solvers" if package == "sparse_ncp" else package
    lines = [f"# {title}", "", f"Everything that can be imported from `{package}`.", ""]
    for name in sorted(module.__all__, key=str.lower):
        value = getattr(module, name)
        lines.append(f"::: {source}.{name}")
        if hasattr(value, "__path__") or type(value).__name__ == "module":
            members = getattr(value, "__all__", None)
            lines += ["    options:", f"      members: [{', '.join(members)}]"] if members else []
        lines.append("")
    return "\n".join(lines)


def openapi_reference() -> Iterator[str]:
    """Yield the lines of a page with every call and every object of the OpenAPI document."""
    from sparse_ncp.app.main import create_app
    from sparse_ncp.worker.config import Configuration

    document = create_app(Configuration()).openapi()
    yield OPENAPI_INTRODUCTION
    for path, operations in document["paths"].items():
        for method in (method for method in METHODS if method in operations):
            yield from describe_call(method, path, operations[method])
    yield from ("## Objects", "")
    for name, schema in sorted(document["components"]["schemas"].items(), key=lambda item: item[0].lower()):
        yield from (f"### {name}", "", describe(schema), "")
        if properties := schema.get("properties"):
            required = schema.get("required", ())
            yield from table(
                ("field", "type", "default", "meaning"),
                (
                    (f"`{key}`", type_name(field), default_of(field, key in required), describe(field))
                    for key, field in properties.items()
                ),
            )


def describe_call(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of one call: its parameters, body and answers."""
    yield from (f"### `{method.upper()} {path}`", "", operation.get("description", operation.get("summary", "")), "")
    if parameters := operation.get("parameters"):
        yield from table(
            ("parameter", "in", "type", "meaning"),
            ((f"`{one['name']}`", one["in"], type_name(one.get("schema", {})), describe(one)) for one in parameters),
        )
    if body := operation.get("requestBody"):
        kinds = [f"{type_name(content.get('schema', {}))} as `{kind}`" for kind, content in body["content"].items()]
        yield from (f"Body: {', '.join(kinds)}", "")
    yield from table(
        ("status", "answer", "meaning"),
        (
            (status, answer_type(answer), describe(answer))
            for status, answer in operation["responses"].items()
            if status not in COMMON_STATUSES
        ),
    )


def answer_type(answer: dict[str, Any]) -> str:
    """Return the types of an answer's body, or a dash."""
    contents = answer.get("content", {})
    named = [type_name(content.get("schema", {})) or f"`{kind}`" for kind, content in contents.items()]
    return ", ".join(dict.fromkeys(named)) or "–"


def type_name(schema: dict[str, Any]) -> str:
    """Return a schema's type in words, with links to objects of the page."""
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema:
            return " or ".join(dict.fromkeys(filter(None, map(type_name, schema[union]))))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema.get("type") == "array":
        return f"array of {type_name(schema.get('items', {})) or 'any'}"
    return str(schema.get("type", ""))


def default_of(field: dict[str, Any], required: bool) -> str:
    """Return a field's default as code, `required`, or a dash."""
    if required:
        return "required"
    return f"`{field['default']}`" if field.get("default") is not None else "–"


def table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Yield a table and an empty line."""
    yield f"| {' | '.join(titles)} |"
    yield "|" + "---|" * len(titles)
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


def describe(described: dict[str, Any]) -> str:
    """Return a description with its lines joined, as a table needs it."""
    return " ".join(described.get("description", "").split())
