"""Test suites written by others, run through the compiler's native code: how much of each is right."""
