"""Shared by all tests."""

# Answers that the exercise checks must reject: read by their tests, never imported as modules.
collect_ignore_glob = ["wrong/*"]
