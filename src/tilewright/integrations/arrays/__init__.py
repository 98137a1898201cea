"""Functions written against the array API, as graphs."""
