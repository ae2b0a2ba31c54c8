"""Typical wrong solutions of the lab on acceleration: the hint's code, and what becomes what."""

PLUS = "result[rows, columns] += multiply"
UNFUSED = "    return sum(least_s(numbers * cost, moved, peak, bandwidth) for cost in costs)"
FUSED = "        return least_s(numbers * sum(costs), moved, peak, bandwidth)\n"
NAIVE_LOOPS = """\
        for j in range(len(sums)):
            for p in range(len(b)):
                sums[j] += row[p] * b[p][j]
"""
NAIVE_BODY = (
    "    result = []\n    for row in a:\n        sums = [0.0] * len(b[0])\n"
    + NAIVE_LOOPS
    + "        result.append(sums)\n"
)
WRITTEN = "target[start : start + piece.size])\n    return result"

WRONG = {
    "naive": [
        ("transposed", "sums[j] += row[p] * b[p][j]", "sums[j] += row[p] * b[j][p]"),
        (
            "shared-rows",
            NAIVE_BODY,
            "    result = [[0.0] * len(b[0])] * len(a)\n"
            "    for row, sums in zip(a, result):\n" + NAIVE_LOOPS,
        ),
        (
            "sum-not-reset",
            NAIVE_BODY,
            "    result, total = [], 0.0\n    for row in a:\n        sums = [0.0] * len(b[0])\n"
            "        for j in range(len(sums)):\n            for p in range(len(b)):\n"
            "                total += row[p] * b[p][j]\n            sums[j] = total\n"
            "        result.append(sums)\n",
        ),
        ("not-refused", "    if len(a[0]) != len(b):\n", "    if not a:\n"),
        ("not-refused", "    if len(a[0]) != len(b):\n", "    if len(a[0]) > len(b):\n"),
        ("wrong-count", NAIVE_BODY, "    result = (np.array(a, float) @ np.array(b)).tolist()\n"),
        ("wrong-shape", "        result.append(sums)\n", "        result += sums\n"),
    ],
    "rows": [
        (
            "library-product",
            "        result += a[:, p : p + 1] * b[p]\n    return result",
            "        pass\n    return a @ b",
        ),
        (
            "library-product",
            "        result += a[:, p : p + 1] * b[p]\n    return result",
            "        pass\n    return np.einsum('mk,kn->mn', a, b)",
        ),
        (
            "too-much-memory",
            "    for p in range(a.shape[1]):\n        result += a[:, p : p + 1] * b[p]\n"
            "    return result",
            "    return (a[:, :, None] * b).sum(axis=1)",
        ),
        (
            "several-loops",
            "    for p in range(a.shape[1]):\n        result += a[:, p : p + 1] * b[p]\n",
            "    for i in range(a.shape[0]):\n        for j in range(b.shape[1]):\n"
            "            result[i, j] = np.sum(a[i] * b[:, j])\n",
        ),
        (
            "float64",
            "np.zeros((a.shape[0], b.shape[1]), a.dtype)\n    for p",
            "np.zeros((a.shape[0], b.shape[1]))\n    for p",
        ),
        (
            "wrong-product",
            "result += a[:, p : p + 1] * b[p]",
            "result = a[:, p : p + 1] * b[p]",
        ),
        (
            "inputs-changed",
            "        result += a[:, p : p + 1] * b[p]\n",
            "        result += a[:, p : p + 1] * b[p]\n        b[p] *= 2\n",
        ),
    ],
    "blocked": [
        ("not-added", PLUS, "result[rows, columns] = multiply"),
        ("edge-missing", "for i in range(0, m, block)", "for i in range(0, m - block + 1, block)"),
        ("edge-missing", "for j in range(0, n, block)", "for j in range(0, n - block + 1, block)"),
        ("edge-missing", "for p in range(0, k, block)", "for p in range(0, k - block + 1, block)"),
        (
            "axis-not-cut",
            "            for p in range(0, k, block):\n"
            "                inner = slice(p, p + block)\n                " + PLUS,
            "            for inner in (slice(0, k),):\n                " + PLUS,
        ),
        (
            "own-product",
            "multiply(a[rows, inner], b[inner, columns])",
            "a[rows, inner] @ b[inner, columns]",
        ),
        ("float64", "result = np.zeros((m, n), a.dtype)", "result = np.zeros((m, n))"),
        (
            "wrong-work",
            "                " + PLUS,
            "                multiply(a[rows, inner], b[inner, columns])\n                " + PLUS,
        ),
    ],
    "traffic": [
        (
            "read-once",
            "reads = m * k * math.ceil(n / block) + k * n * math.ceil(m / block)",
            "reads = m * k + k * n",
        ),
        (
            "not-whole",
            "reads = m * k * math.ceil(n / block) + k * n * math.ceil(m / block)",
            "reads = m * k * n / block + k * n * m / block",
        ),
        (
            "axes-swapped",
            "reads = m * k * math.ceil(n / block) + k * n * math.ceil(m / block)",
            "reads = m * k * math.ceil(m / block) + k * n * math.ceil(n / block)",
        ),
        ("result-missing", "bytes_per_number * (reads + m * n)", "bytes_per_number * reads"),
        ("wrong-traffic", "bytes_per_number * (reads + m * n)", "reads + m * n + bytes_per_number"),
        ("macs", "return 2 * m * k * n / traffic", "return m * k * n / traffic"),
        (
            "inverse",
            "return 2 * m * k * n / traffic(m, k, n, block, bytes_per_number)",
            "return traffic(m, k, n, block, bytes_per_number) / (2 * m * k * n)",
        ),
        (
            "one-tile",
            "math.isqrt(cache_bytes // (3 * bytes_per_number))",
            "math.isqrt(cache_bytes // bytes_per_number)",
        ),
        ("wrong-block", "math.isqrt(cache_bytes // (3 * bytes_per_number))", "64  # typed in"),
        (
            "wrong-block",
            "math.isqrt(cache_bytes // (3 * bytes_per_number))",
            "round(math.sqrt(cache_bytes / (3 * bytes_per_number)))",
        ),
    ],
    "gelu": [
        (
            "whole-temporaries",
            "    result = np.empty(x.shape, x.dtype)\n",
            "    return plain_gelu(x)\n    result = np.empty(x.shape, x.dtype)\n",
        ),
        (
            "tail-missing",
            "for start in range(0, x.size, chunk)",
            "for start in range(0, x.size - x.size % chunk, chunk)",
        ),
        (
            "input-changed",
            "        np.multiply(piece, piece, out=part)\n        part *= 0.044715\n",
            "        np.multiply(piece, piece, out=part)\n        piece *= 1.001\n"
            "        part *= 0.044715\n",
        ),
        ("float64", "np.empty(x.shape, x.dtype)", "np.empty(x.shape)"),
        ("wrong-gelu", "        part *= 0.044715\n", "        part *= 0.44715\n"),
        ("wrong-gelu", "        part *= 0.7978845608\n", ""),
        (
            "whole-temporaries",
            "np.empty(min(chunk, x.size), x.dtype)",
            "np.empty(x.size, x.dtype)",
        ),
        (
            "wrong-order",
            "x.reshape(-1) if x.flags.c_contiguous else x.flat, result.reshape(-1)",
            "x.T.reshape(-1), result.reshape(-1)",
        ),
        (
            "wrong-shape",
            WRITTEN,
            WRITTEN + ".reshape(-1)",
        ),
    ],
    "bound": [
        (
            "sum-for-longer",
            "max(flops / peak, moved / bandwidth)",
            "flops / peak + moved / bandwidth",
        ),
        (
            "shorter-for-longer",
            "max(flops / peak, moved / bandwidth)",
            "min(flops / peak, moved / bandwidth)",
        ),
        (
            "wrong-bound",
            "max(flops / peak, moved / bandwidth)",
            "max(flops, moved) / bandwidth",
        ),
        (
            "one-piece",
            UNFUSED,
            "    return least_s(numbers * sum(costs), len(costs) * moved, peak, bandwidth)",
        ),
        (
            "fused-too",
            UNFUSED,
            "    return least_s(numbers * sum(costs), moved, peak, bandwidth)",
        ),
        (
            "all-bytes",
            FUSED,
            "        return least_s(numbers * sum(costs), len(costs) * moved, peak, bandwidth)\n",
        ),
        (
            "one-way",
            "moved = 2 * numbers * bytes_per_number",
            "moved = numbers * bytes_per_number",
        ),
    ],
    "target": [
        ("by-time", 'key=lambda each: -each["saved_s"])', 'key=lambda each: -each["seconds"])'),
        ("wrong-order", 'key=lambda each: -each["saved_s"])', 'key=lambda each: each["saved_s"])'),
        (
            "hidden",
            'found["saved_s"] += max(0.0, row["seconds"] - least)',
            'found["saved_s"] += row["seconds"] - least',
        ),
        (
            "speedup-of-part",
            'total / (total - each["saved_s"])}',
            'each["seconds"] / (each["seconds"] - each["saved_s"])}',
        ),
        ("wrong-speedup", 'total / (total - each["saved_s"])}', '1 + each["saved_s"] / total}'),
        (
            "wrong-least",
            'least = least_s(row["flops"], row["bytes"], peak, bandwidth)',
            'least = row["flops"] / peak',
        ),
        (
            "wrong-seconds",
            'found["seconds"] += row["seconds"]',
            'found["seconds"] = row["seconds"]',
        ),
    ],
}
