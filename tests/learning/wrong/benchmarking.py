"""Typical wrong solutions of the lab on benchmarking: the hint's code, and what becomes what."""

RANDOM_ORDER = "        if rng.random() < 0.5:\n            sides.reverse()\n"
ROUNDS = (
    "    for _ in range(rounds):\n        sides = [(a, times_a), (b, times_b)]\n"
    + RANDOM_ORDER
    + "        for side, times in sides:\n            times.append(time_turn(side, loops, clock))\n"
)
RATIOS = "    ratios = [b / a for a, b in zip(a_times, b_times, strict=True)]\n"
LOGS_END = "        for reference, entry in heats\n    ]\n"
INSIDE = (
    "sum(math.log(reference[name] / entry[name]) for name in measures) / len(measures)\n" + LOGS_END
)
MEANS = "[(logs[i] + logs[j]) / 2 for i in range(len(logs)) for j in range(i, len(logs))]"

WRONG = {
    "turns": [
        ("total-for-call", "    return (clock() - start) / loops", "    return clock() - start"),
        (
            "reads-in-loop",
            "    start = clock()\n    for _ in range(loops):\n        func()\n"
            "    return (clock() - start) / loops",
            "    total = 0.0\n    for _ in range(loops):\n        start = clock()\n"
            "        func()\n        total += clock() - start\n    return total / loops",
        ),
        (
            "own-clock",
            "    start = clock()\n    for _ in range(loops):\n        func()\n"
            "    return (clock() - start) / loops",
            "    start = time.perf_counter()\n    for _ in range(loops):\n        func()\n"
            "    return (time.perf_counter() - start) / loops",
        ),
        (
            "wrong-calls",
            "    start = clock()\n    for _ in range(loops):\n        func()\n    return (clock()",
            "    func()\n    start = clock()\n    for _ in range(loops):\n        func()\n"
            "    return (clock()",
        ),
        (
            "cold-calibration",
            "    func()\n    loops = 1\n    while",
            "    loops = 1\n    while",
        ),
        (
            "turn-too-long",
            "    while loops * time_turn(func, loops, clock) < turn_s:",
            "    while time_turn(func, loops, clock) * loops < 2 * turn_s:",
        ),
        (
            "turn-too-short",
            "    while loops * time_turn(func, loops, clock) < turn_s:",
            "    while 2 * loops * time_turn(func, loops, clock) < turn_s:",
        ),
        ("not-doubled", "        loops *= 2\n", "        loops += 1\n"),
    ],
    "interval": [
        (
            "mean-interval",
            "    ordered, n = sorted(values), len(values)\n",
            "    ordered, n = sorted(values), len(values)\n"
            "    half, middle = 1.96 * np.std(values, ddof=1) / n**0.5, np.mean(values)\n"
            "    return middle - half, middle, middle + half\n",
        ),
        (
            "mean-interval",
            "    ordered, n = sorted(values), len(values)\n",
            "    ordered, n = sorted(values), len(values)\n"
            "    half, middle = 1.96 * np.std(values, ddof=1) / n**0.5, np.median(values)\n"
            "    return middle - half, middle, middle + half\n",
        ),
        (
            "spread-of-values",
            "    ordered, n = sorted(values), len(values)\n",
            "    ordered, n = sorted(values), len(values)\n"
            "    if n > 20:\n"
            "        return tuple(np.percentile(values, (2.5, 50, 97.5)))\n",
        ),
        ("one-tail", "2 * math.comb(n, count) / 2**n", "math.comb(n, count) / 2**n"),
        ("wrong-interval", "        k = count\n", "        k = max(0, count - 1)\n"),
        ("wrong-interval", "float(ordered[n - 1 - k])", "float(ordered[n - 1 - max(0, k - 1)])"),
        (
            "wrong-median",
            "float(np.median(ordered)), float(ordered[n",
            "float(ordered[n // 2]), float(ordered[n",
        ),
        (
            "too-few",
            "    if k < 0:\n        raise",
            "    k = max(k, 0)\n    if not n:\n        raise",
        ),
    ],
    "tail": [
        ("added-up", "return 1 - (q / 100) ** requests", "return requests * (1 - q / 100)"),
        ("inverse", "return 1 - (q / 100) ** requests", "return (q / 100) ** requests"),
        ("wrong-chance", "return 1 - (q / 100) ** requests", "return 1 - q / 100"),
        ("wrong-chance", "return 1 - (q / 100) ** requests", "return 0.395  # typed in"),
        ("wrong-calls-for", "100 * beyond / (100 - q), 6)", "100 * beyond / (100 - q), 6) + 2"),
        ("below-for-beyond", "round(100 * beyond / (100 - q), 6)", "100 * beyond / q"),
        (
            "rounding-error-rounded-up",
            "round(100 * beyond / (100 - q), 6)",
            "beyond / (1 - q / 100)",
        ),
        (
            "not-whole",
            "math.ceil(round(100 * beyond / (100 - q), 6))",
            "-(-round(100 * beyond) // (100 - q)) if beyond == int(beyond) else 10.5",
        ),
        ("sum-for-slowest", ".max(axis=1)", ".sum(axis=1)"),
        ("fastest-for-slowest", ".max(axis=1)", ".min(axis=1)"),
        ("wrong-shape", ".max(axis=1)", ".max(axis=0)"),
        ("single-call", ".max(axis=1)", "[:, 0]"),
        ("wrong-pages", "(pages, requests)).max(axis=1)", "(pages, requests + 1)).max(axis=1)"),
    ],
    "pairs": [
        (
            "a-then-b",
            ROUNDS,
            "    times_a = [time_turn(a, loops, clock) for _ in range(rounds)]\n"
            "    times_b = [time_turn(b, loops, clock) for _ in range(rounds)]\n",
        ),
        ("fixed-order", RANDOM_ORDER, ""),
        (
            "fixed-order",
            "        if rng.random() < 0.5:\n",
            "        if len(times_a) % 2:\n",
        ),
        (
            "own-randomness",
            "        if rng.random() < 0.5:\n",
            "        if np.random.default_rng().random() < 0.5:\n",
        ),
        ("cold", "    a(), b()\n", ""),
        (
            "sides-swapped",
            "        for side, times in sides:\n            times.append",
            "        for (side, _), times in zip(sides, (times_a, times_b)):\n"
            "            times.append",
        ),
        ("wrong-calls", "time_turn(side, loops, clock)", "time_turn(side, 2 * loops, clock)"),
        (
            "own-clock",
            "time_turn(side, loops, clock)",
            "time_turn(side, loops, time.perf_counter)",
        ),
    ],
    "verdict": [
        (
            "unpaired",
            "    if high < 1 / (1 + band):",
            "    ratio = np.median(b_times) / np.median(a_times)\n    if high < 1 / (1 + band):",
        ),
        ("inverse", "[b / a for a, b in zip", "[a / b for a, b in zip"),
        (
            "wrong-interval",
            "median_interval(ratios, coverage)",
            "median_interval(ratios)",
        ),
        (
            "absence-of-evidence",
            "low >= 1 / (1 + band) and high <= 1 + band:",
            "low <= 1 <= high:",
        ),
        (
            "no-interval",
            '    if high < 1 / (1 + band):\n        verdict = "faster"\n    elif low > 1 + band:',
            '    if ratio < 1 / (1 + band):\n        verdict = "faster"\n'
            "    elif ratio > 1 + band:",
        ),
        (
            "band-ignored",
            '    if high < 1 / (1 + band):\n        verdict = "faster"\n    elif low > 1 + band:',
            '    if high < 1:\n        verdict = "faster"\n    elif low > 1:',
        ),
        (
            "wrong-direction",
            'verdict = "faster"\n    elif low > 1 + band:\n        verdict = "slower"',
            'verdict = "slower"\n    elif low > 1 + band:\n        verdict = "faster"',
        ),
    ],
    "alarms": [
        ("one-direction", 'each in ("faster", "slower") for', 'each == "faster" for'),
        ("same-counted", 'each in ("faster", "slower") for', 'each != "inconclusive" for'),
        (
            "drawn-once",
            "    verdicts = [decide(*draw()) for _ in range(experiments)]\n",
            "    times = draw()\n    verdicts = [decide(*times) for _ in range(experiments)]\n",
        ),
        (
            "count-for-share",
            "for each in verdicts) / experiments",
            "for each in verdicts)",
        ),
        ("whole-data", "decide(a_times[:n], b_times[:n])", "decide(a_times, b_times)"),
        ("wrong-part", "decide(a_times[:n], b_times[:n])", "decide(a_times[-n:], b_times[-n:])"),
        (
            "goes-on",
            '            if verdict in ("faster", "slower"):\n                break\n',
            "",
        ),
        (
            "wrong-end",
            "        return verdict\n\n    return decide_early",
            '        return verdict if verdict in ("faster", "slower") else "none"\n\n'
            "    return decide_early",
        ),
    ],
    "score": [
        (
            "inverse",
            "math.log(reference[name] / entry[name])",
            "math.log(entry[name] / reference[name])",
        ),
        (
            "arithmetic",
            INSIDE,
            "math.log(sum(reference[name] / entry[name] for name in measures) / len(measures))\n"
            + LOGS_END,
        ),
        (
            "wrong-heat",
            "for name in measures) / len(measures)",
            "for name in entry) / len(entry)",
        ),
        ("wrong-heat", "for name in measures) / len(measures)", "for name in measures)"),
        ("logarithm", "math.exp(float(np.median(means)))", "float(np.median(means))"),
        ("best-of", "np.median(means)", "max(means)"),
        ("mean-of-heats", MEANS, "[sum(logs) / len(logs)]"),
        ("median-of-heats", MEANS, "logs"),
        ("without-itself", "for j in range(i, len(logs))]", "for j in range(i)]"),
    ],
}
