"""A module like `pynvml`, whose answers are given, as far as the package asks it."""

from types import SimpleNamespace

TEXTS = {3: "Not Supported", 9: "Driver Not Loaded"}


class NVMLError(Exception):
    def __init__(self, status):
        super().__init__(TEXTS.get(status, f"error {status}"))


class NVMLError_NotFound(NVMLError):
    pass


class ScriptedNvml:
    """One device: `numbers` has what functions about it answer, `processes` who computes on it.

    Instead of processes and their uses there may be the status with which these are refused. A
    function that is not there at all is named in `missing`. `counted` are readings of the energy
    counter, one after the other.
    """

    NVMLError, NVMLError_NotFound = NVMLError, NVMLError_NotFound

    def __init__(self, *, counted=(), status=0, numbers=None, processes=(), uses=(), missing=()):
        self.counted, self.status, self.asked = list(counted), status, []
        self.numbers, self.processes, self.uses = dict(numbers or {}), processes, uses
        self.missing = missing

    def nvmlInit(self):
        if self.status == 9:
            raise NVMLError(9)

    def nvmlDeviceGetHandleByIndex(self, index):
        self.asked.append(index)
        return 1

    def nvmlDeviceGetHandleByUUID(self, unique):
        self.asked.append(unique)
        return 1

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        if self.status:
            raise NVMLError(self.status)
        return self.counted.pop(0) if self.counted else 0

    def __getattr__(self, name):
        if not name.startswith("nvmlDevice") or name in self.missing:
            raise AttributeError(name)
        if "ComputeRunningProcesses" in name:
            return lambda handle: self._rows(self.processes, pid=0, usedGpuMemory=0)
        if "ProcessUtilization" in name:
            return lambda handle, since: self._rows(self.uses, pid=0, timeStamp=0, smUtil=0)
        return lambda handle, *which: self._number((name, *which) if which else name)

    def _number(self, key):
        if self.numbers.get(key) is None:
            raise NVMLError(3)
        value = self.numbers[key]
        return value.pop(0) if isinstance(value, list) else value

    def _rows(self, rows, **defaults):
        if rows == 6:
            raise NVMLError_NotFound(6)
        if rows is None or isinstance(rows, int):
            raise NVMLError(rows or 3)
        return [SimpleNamespace(**{**defaults, **row}) for row in rows]
