"""Helpers for programs that survive kills and explain their errors: atomic files, errors, seeds, databases.

The lowest package: it imports nothing from this project. Open `errors` first: it decides whether a failure prints one
line or a traceback. Every other package raises its `UserError`.
"""
