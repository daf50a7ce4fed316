"""Any strict pydantic model from a YAML file, every error at once as `FILE:LINE: key: message`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from dynamix_ps.config_yaml import Document, read_yaml
from dynamix_ps.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)


def read_model(file: Path, model: type[Model]) -> Model:
    """Raises ConfigError: the file cannot be read, or one line per error in it."""
    document = read_document(file)
    return checked(file, document, document.data, model)


def read_document(file: Path) -> Document:
    """Raises ConfigError: the file cannot be read, or is no YAML."""
    try:
        document = read_yaml(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from error
    if document.problems:
        raise ConfigError("\n".join(f"{file}:{one.line}: {one.message}" for one in document.problems))
    return document


def checked(file: Path, document: Document, data: Any, model: type[Model]) -> Model:
    """`data`, which may differ from what `document` holds, as a model. Raises ConfigError."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        lines = []
        for item in error.errors(include_url=False):
            key = ".".join(map(str, item["loc"])) or "file"
            lines.append(f"{file}:{document.line(tuple(item['loc']))}: {key}: {item['msg']}")
        raise ConfigError("\n".join(lines)) from error
