"""What schema.py says below each key, for those who show it to users.

pydantic could read these texts when the schema is imported, which would take each process of a job a fourth longer.
"""

from __future__ import annotations

import ast
import functools
import inspect
from itertools import pairwise

from dynamix_ps.config import schema


@functools.cache
def describe_keys() -> None:
    """From now on the fields of all sections have their descriptions, and so has the JSON schema of `Config`."""
    classes = [node for node in ast.parse(inspect.getsource(schema)).body if isinstance(node, ast.ClassDef)]
    for node in classes:
        section = getattr(schema, node.name)
        for field, text in pairwise(node.body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                    section.model_fields[name].description = inspect.cleandoc(said)
    for node in classes:  # an inner section stands before those that hold it
        getattr(schema, node.name).model_rebuild(force=True)
