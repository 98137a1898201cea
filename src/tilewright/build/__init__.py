"""From a source model to native code: the stages in order, their options, and what is kept of them."""
