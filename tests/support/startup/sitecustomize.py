"""Collect garbage rarely in all processes that tests start: importing torch makes a million objects that stay.

Python imports this module at its start, because conftest.py puts its folder on PYTHONPATH.
"""

import gc

gc.set_threshold(50_000, 20, 100)
