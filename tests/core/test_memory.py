import platform
import subprocess
import sys

import pytest

CODE = """
import resource
import numpy as np
from tinytorch.core.files import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def work():
    arrays = [np.ones(1 << 20, np.float32) for _ in range(8)]  # 32 MiB, freed on return
    return sum(float(array[0]) for array in arrays)

if {keep}:
    assert keep_freed_memory()
work(), work()
before = faults()
for _ in range(10):
    work()
print(faults() - before)
"""


def page_faults(*, keep: bool) -> int:
    code = CODE.format(keep=keep)
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(shown.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_kept_memory_is_not_paid_for_again():
    # 80 arrays of 4 MiB touch 80 * 1024 pages, or a few hundred where pages are huge
    assert page_faults(keep=True) < page_faults(keep=False) / 10
