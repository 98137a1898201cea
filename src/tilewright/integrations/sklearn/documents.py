"""Steps that read whole texts: scikit-learn itself counts their words, and compiled code gets the numbers.

In: a pipeline whose first step reads documents. Out: that step with the columns that it makes, and the pipeline behind
it. Not its business: columns of text that stand for categories (``columns``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.core.diag import CompileError
from tilewright.core.types import Array
from tilewright.runtime.errors import InputError
from tilewright.runtime.once import MAKING


def reads_documents(step: Any) -> bool:
    """Is a step a vectoriser, begins with one, or joins several?"""
    with MAKING:
        from sklearn.feature_extraction import DictVectorizer, FeatureHasher
        from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer
        from sklearn.pipeline import FeatureUnion, Pipeline

    if isinstance(step, Pipeline):
        return reads_documents(step.steps[0][1])
    if isinstance(step, FeatureUnion):
        return any(reads_documents(part) for _, part in step.transformer_list)
    return isinstance(step, CountVectorizer | HashingVectorizer | DictVectorizer | FeatureHasher)


@dataclass(frozen=True)
class Documents:
    """A fitted step that makes ``n`` numbers of each document."""

    step: Any
    n: int

    def numbers(self, rows: Any) -> Array:
        """f32[documents, n]; ``InputError`` for what the step can't read."""
        try:
            made = self.step.transform(rows)
        except (AttributeError, TypeError, ValueError) as error:
            raise InputError(f"the rows are no documents: {error}", remedy="pass a list of texts") from error
        return np.asarray(made.toarray() if hasattr(made, "toarray") else made, np.float32)


def documents_of(step: Any) -> Documents:
    if hasattr(step, "get_feature_names_out"):
        return Documents(step, len(step.get_feature_names_out()))
    return Documents(step, int(step.n_features))  # one that hashes has no names


def without_first(pipeline: Any) -> tuple[Any, Any]:
    """The step that reads documents, and the pipeline behind it; None behind a step that stands alone."""
    if not hasattr(pipeline, "steps"):
        return pipeline, None
    first = pipeline.steps[0][1]
    if hasattr(first, "steps"):
        raise CompileError("a pipeline that reads documents is a step of another", remedy="make one of both")
    return first, pipeline[1:] if len(pipeline.steps) > 1 else None
