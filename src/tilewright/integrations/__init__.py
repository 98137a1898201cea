"""Tilewright inside other systems: each calls the compiler as a user would."""
