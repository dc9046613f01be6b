"""Pages of prose with blocks that are made from the code: a block cannot drift, and what stands around it stays."""

import re
from collections.abc import Mapping

from share_state.errors import DeclarationError

_BLOCK = re.compile(r"<!-- begin (?P<name>[\w ]+) -->\n.*?<!-- end (?P=name) -->\n", re.DOTALL)


def filled(page: str, blocks: Mapping[str, str]) -> str:
    """A page with its blocks made anew.

    Args:
        page: markdown; a block stands between the lines `<!-- begin NAME -->` and `<!-- end NAME -->`.
        blocks: name -> lines of it.
    Raises:
        DeclarationError: if the page has a block that is not known.
    """

    def renewed(found: re.Match[str]) -> str:
        name = found["name"]
        if name not in blocks:
            raise DeclarationError(f"block '{name}': nothing is known to fill it with; use {', '.join(blocks)}")
        return f"<!-- begin {name} -->\n{blocks[name].strip()}\n<!-- end {name} -->\n"

    return _BLOCK.sub(renewed, page)


def blocks_of(page: str) -> list[str]:
    """The names of the blocks of a page, in order."""
    return [found["name"] for found in _BLOCK.finditer(page)]
