import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

from stimulus_moo.lab import data

MODULES = [f"{data.__name__}.{module.name}" for module in pkgutil.iter_modules(data.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_the_docstrings_are_true(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_importing_the_package_imports_no_optional_package():
    heavy = "sklearn", "pooch", "PIL", "pandas"
    code = f"import sys, stimulus_moo.lab.data; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "[]"
