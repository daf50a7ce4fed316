"""The parts of the documentation that are made from the code, and the checks of the rest.

`python -m docs.generate` writes the generated parts into the pages; `--check` only says whether they are up to date.
`python -m docs.generate.screenshots` makes the pictures of pages.
"""
