"""Finding where a compiled model goes wrong, and the smallest model that still does."""
