"""An imaginary driver's library, as far as it is asked by the package."""


class Library:
    """One device: `numbers` says what functions about it answer, `processes` who computes on it.

    Instead of processes and their uses there may be the status with which these are refused. A
    function that is not there at all is named in `missing`. `counted` are readings of the energy
    counter, one after the other.
    """

    def __init__(self, *, counted=(), status=0, numbers=None, processes=(), uses=(), missing=()):
        self.counted, self.status, self.asked = list(counted), status, []
        self.numbers, self.processes, self.uses = dict(numbers or {}), processes, uses
        self.missing = missing
        self.nvmlErrorString = self.Explain()

    class Explain:
        restype = None

        def __call__(self, status):
            return {3: b"Not Supported", 9: b"Driver Not Loaded"}.get(status.value)

    def nvmlInit_v2(self):
        return 9 if self.status == 9 else 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):
        self.asked.append(index.value)
        handle._obj.value = 1
        return 0

    def nvmlDeviceGetHandleByUUID(self, unique, handle):
        self.asked.append(unique.decode())
        handle._obj.value = 1
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle, counted):
        if self.counted:
            counted._obj.value = self.counted.pop(0)
        return self.status

    def __getattr__(self, name):
        if not name.startswith("nvmlDevice") or name in self.missing:
            raise AttributeError(name)
        if "ComputeRunningProcesses" in name:
            return lambda handle, count, array: self._list(count, array, self.processes)
        if "ProcessUtilization" in name:
            return lambda handle, array, count, since: self._list(count, array, self.uses)
        return lambda handle, *arguments: self._tell(name, *arguments)

    def _tell(self, name, *arguments):
        *which, answer = arguments
        key = (name, which[0].value) if which else name
        if self.numbers.get(key) is None:
            return 3
        value = self.numbers[key]
        answer._obj.value = value.pop(0) if isinstance(value, list) else value
        return 0

    def _list(self, count, array, rows):
        if rows is None:
            return 3
        if isinstance(rows, int):
            return rows
        room, count._obj.value = count._obj.value, len(rows)
        if room < len(rows):
            return 7
        for place, row in zip(array or (), rows, strict=False):
            for name, value in row.items():
                setattr(place, name, value)
        return 0
