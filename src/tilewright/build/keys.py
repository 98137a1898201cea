"""The keys of the disk cache: texts that change whenever what is compiled, or what compiles it, does.

In: a graph, or the key of a file (``runtime.answers``), and the options. Out: a key's text.
Not its business: files of the cache (``runtime.cache``).
"""

from __future__ import annotations

from hashlib import sha256

from tilewright.build.options import Options
from tilewright.core.graph import Graph
from tilewright.core.text import SideTable, print_graph
from tilewright.runtime.answers import compiler_text
from tilewright.runtime.digest import digest_arrays


def graph_key(graph: Graph) -> str:
    """A text that changes whenever the graph or a number in it does."""
    table = SideTable()
    text = print_graph(graph, table)
    return f"graph {sha256(text.encode()).hexdigest()} {digest_arrays(table.arrays.values())}"


def cache_key(source: str, options: Options) -> str:
    """The key of what a source's key, or a graph's, becomes by these options and this compiler."""
    target = options.machine
    return f"{compiler_text()}\n{source}\n{options}\n{target}"
