"""A compiled model as one file of C and its header.

In: kernels as C functions, the entry's LLVM text, weights, a manifest. Out: two texts.
Not its business: kernels in C (``codegen.c``), writing files (``build.convert``).

The file needs C11, a machine of the target's size of pointers that is little-endian, and C's own library. It asks for
no instructions, so that a compiler for any CPU takes it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from string import Template

from tilewright.aot.export import Modules
from tilewright.aot.glue import glue_text
from tilewright.aot.header import header_text
from tilewright.aot.interface import Interface, c_name, checked_name
from tilewright.aot.system import system_of
from tilewright.codegen.c.elements import Helpers
from tilewright.codegen.c.skeleton import Skeleton, prelude
from tilewright.core.diag import OptionError
from tilewright.runtime.digest import digest_bytes
from tilewright.runtime.manifest import TargetSpec

_FILE = Template("""\
/* $name: a compiled model as C11. Written by Tilewright $version; $header says how to use it.
 *
 * Compile it with optimisation (it gains from -O3 and from -march= or its like), link C's mathematics library. Do not
 * let the compiler assume that there is no NaN and no infinity (-ffast-math).
 */
#include "$header"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(void *) == $pointer_bytes, "this file is for machines with pointers of $pointer_bytes bytes");
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the weights in this file are little-endian"
#endif
/* A product and a sum are one operation where the text says so, and nowhere else. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("fp-contract=off")
#else
#pragma STDC FP_CONTRACT OFF
#endif

/* What operations on elements and sizes are. */
$prelude
$helpers

/* The kernels, in the order of their first use. */
$kernels

/* The order of kernels, and the functions of the header. */
$skeleton
""")
_PROTOTYPE = re.compile(r"^((?:const )?\w+ \*?(\w+)\([^()]*\));$", re.MULTILINE)


def c_files(modules: Modules, path: Path, kernels: Sequence[str], helpers: Helpers) -> tuple[str, str]:
    """The C file, and the header that will stand at ``path``, whose stem names the functions.

    ``kernels`` are functions that call ``helpers``, and ``modules`` have the entry alone. Raises ``OptionError`` where
    no function can have the name, or no ``#include`` the file.
    """
    name = _checked(path)
    system = replace(system_of(modules.target.triple), pool=None, files="", has_huge_pages=False)
    manifest = replace(modules.manifest, target=TargetSpec(modules.target.triple, "any"))
    of = Interface(
        name=name,
        manifest=manifest,
        max_threads=1,
        weights_bytes=modules.weights.nbytes,
        embedded=True,
        arena_bytes=manifest.report["memory"]["arena_bytes"],
        fingerprint=digest_bytes(modules.weights.data),
        is_source=True,
    )
    glue = glue_text(of, system, None)
    header = header_text(of, system)
    prototypes = {function: head for head, function in _PROTOTYPE.findall(header)}
    skeleton = Skeleton(prototypes, {f"{name}_weights_data": modules.weights.data.cast("B")})
    for text in (glue, modules.texts["entry"]):
        skeleton.add(text)
    around = skeleton.text()
    text = _FILE.substitute(
        name=name,
        header=path.name,
        version=manifest.tilewright_version,
        pointer_bytes=system.pointer_bytes,
        prelude=prelude(around),
        helpers=helpers.text(),
        kernels="\n\n".join(kernels),
        skeleton=around,
    )
    return text, header


def _checked(path: Path) -> str:
    """What names begin with in files of such a path."""
    if not path.name.isprintable() or '"' in path.name or "\\" in path.name:
        raise OptionError(f"C can't include a file that is called {path.name!r}", remedy="give it a plain name")
    return checked_name(c_name(path.stem))
