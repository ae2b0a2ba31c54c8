"""Typical wrong solutions of the lab on profiling: the code of the hint, and what becomes what."""

WRONG = {
    "timer": [
        (
            "wrong-calls",
            "        for _ in range(runs):\n            start",
            "        for _ in range(warmup + runs):\n            start",
        ),
        ("warm-up-timed", "    for _ in range(warmup):\n        func()\n", "    runs += warmup\n"),
        ("wrong-calls", "    for _ in range(warmup):\n        func()\n", ""),
        ("mean-for-median", '"median": float(np.median(times))', '"median": float(np.mean(times))'),
        ("wrong-median", "float(np.median(times))", "sorted(times)[len(times) // 2]"),
        ("wrong-median", "float(np.median(times))", "times[len(times) // 2]"),
        (
            "p95-not-interpolated",
            "float(np.percentile(times, 95))",
            "sorted(times)[int(0.95 * len(times))]",
        ),
        ("p95-not-interpolated", "float(np.percentile(times, 95))", "max(times)"),
        ("wrong-p95", "np.percentile(times, 95)", "np.percentile(times, 90)"),
        ("gc-on", "    gc.disable()\n", ""),
        ("gc-not-restored", "        if was_on:\n            gc.enable()", "        gc.enable()"),
        (
            "gc-not-restored",
            "    finally:\n        if was_on:\n            gc.enable()\n",
            "    except ZeroDivisionError:\n        pass\n    if was_on:\n        gc.enable()\n",
        ),
        (
            "gc-not-restored",
            "    for _ in range(warmup):\n        func()\n",
            "    was_on = gc.isenabled()\n    gc.disable()\n    for _ in range(warmup):\n"
            "        func()\n    (gc.enable if was_on else gc.disable)()\n",
        ),
        (
            "own-clock",
            "            start = clock()\n            func()\n"
            "            times.append(clock() - start)",
            "            start = time.perf_counter()\n            func()\n"
            "            times.append(time.perf_counter() - start)",
        ),
        (
            "batch-timed",
            "        for _ in range(runs):\n            start = clock()\n            func()\n"
            "            times.append(clock() - start)",
            "        start = clock()\n        for _ in range(runs):\n            func()\n"
            "        times.append((clock() - start) / runs)",
        ),
        ("batch-timed", '"times": times,', '"times": [0.1],'),
    ],
    "memory": [
        ("end-for-peak", '"peak": peak - before', '"peak": now - before'),
        ("before-counted", '"peak": peak - before', '"peak": peak'),
        ("before-counted", "        tracemalloc.reset_peak()\n", ""),
        ("result-freed", "        result = func()\n", "        func()\n        result = None\n"),
        (
            "tracing-left-on",
            "        if not was_tracing:\n            tracemalloc.stop()",
            "        pass",
        ),
        (
            "tracing-left-on",
            "    finally:\n        if not was_tracing:\n            tracemalloc.stop()",
            "    except ZeroDivisionError:\n        pass\n    if not was_tracing:\n"
            "        tracemalloc.stop()",
        ),
        (
            "stopped-others",
            "        if not was_tracing:\n            tracemalloc.stop()",
            "        tracemalloc.stop()",
        ),
    ],
    "flops": [
        ("macs", "return 2 * rows * layer.in_features", "return rows * layer.in_features"),
        (
            "bias-counted",
            "return 2 * rows * layer.in_features * layer.out_features",
            "return 2 * rows * layer.in_features * layer.out_features + rows * layer.out_features",
        ),
        ("rows-missing", "rows = int(np.prod(shape[:-1]))", "rows = shape[-2]"),
        ("rows-missing", "return 2 * rows * layer.in_features", "return 2 * layer.in_features"),
        ("one-product", "return 2 * (2 * rows * time * width)", "return 2 * rows * time * width"),
        (
            "projections-counted",
            "return 2 * (2 * rows * time * width)",
            "return 2 * (2 * rows * time * width) + 8 * rows * width**2",
        ),
        (
            "heads",
            "return 2 * (2 * rows * time * width)",
            "return layer.num_heads * 2 * (2 * rows * time * width)",
        ),
        ("wrong-attention", "2 * (2 * rows * time * width)", "2 * (2 * rows * width * width)"),
        ("wrong-head", 'if kind == "TiedHead":', 'if kind == "Nothing":'),
        ("not-a-product", "    return 0\n", '    return rows if kind == "GELU" else 0\n'),
        ("wrong-linear", "return 2 * rows * layer.in_features", "return 110247936 + rows"),
    ],
    "layers": [
        (
            "inclusive",
            'row["self_s"] += seconds - inside.pop()',
            'row["self_s"] += seconds; inside.pop()',
        ),
        ("last-call-only", 'row["self_s"] += seconds', 'row["self_s"] = seconds'),
        (
            "wrong-self-time",
            "                inside[-1] += seconds",
            "                inside[-1] = seconds",
        ),
        ("not-restored", '            vars(layer).pop("forward", None)', "            pass"),
        (
            "not-restored",
            "    finally:\n        for _, layer in layers:\n            vars",
            "    except ZeroDivisionError:\n        pass\n    else:\n"
            "        for _, layer in layers:\n            vars",
        ),
        ("output-changed", "original(x, *others, **settings)", "original(x)"),
        ("not-called", 'if row["calls"]]', "]"),
        ("wrong-calls", 'row["calls"] += 1', 'row["calls"] = 1'),
        ("wrong-flops", 'row["flops"] += layer_flops', 'row["flops"] = 2 * layer_flops'),
        (
            "wrong-rows",
            "layers = list(model.named_modules())",
            "layers = list(model.named_children())",
        ),
    ],
    "training": [
        ("no-zero-grad", "    optimizer.zero_grad()\n    begin", "    begin"),
        (
            "zero-grad-timed",
            "    optimizer.zero_grad()\n    begin = clock()",
            "    begin = clock()\n    optimizer.zero_grad()",
        ),
        (
            "loss-left-out",
            "    error = loss(model(x), targets)\n    after_forward = clock()",
            "    output = model(x)\n    after_forward = clock()\n    error = loss(output, targets)",
        ),
        (
            "wrong-times",
            '"backward_s": after_backward - after_forward',
            '"backward_s": 2 * (after_forward - begin)',
        ),
        ("wrong-order", "    optimizer.step()\n", ""),
        (
            "gradients-missed",
            "sum(each.grad.nbytes for each in parameters if each.grad is not None)",
            "0",
        ),
        (
            "gradient-of-unused",
            "sum(each.grad.nbytes for each in parameters if each.grad is not None)",
            "sum(each.data.nbytes for each in parameters)",
        ),
        ("one-slot", "for each in slots.values()]", "for each in list(slots.values())[:1]]"),
        (
            "state-missed",
            "state = [each for slots in optimizer.slots for each in slots.values()]",
            "state = []  # as when looked at before the first step",
        ),
    ],
    "roofline": [
        ("inverse-intensity", "intensity = flops / bytes_moved", "intensity = bytes_moved / flops"),
        ("peak-for-attainable", "flops / seconds / attainable", "flops / seconds / peak"),
        ("wrong-attainable", "min(peak, bandwidth * intensity)", "bandwidth * intensity"),
        (
            "wrong-attainable",
            "min(peak, bandwidth * intensity)",
            "max(peak, bandwidth * intensity)",
        ),
        ("wrong-bound", "if intensity < peak / bandwidth", "if intensity > peak / bandwidth"),
        ("clamped", "flops / seconds / attainable", "min(1.0, flops / seconds / attainable)"),
    ],
    "priority": [
        ("inverse", "return 1 / remaining if remaining", "return remaining if remaining"),
        ("times-not-speeds", "return 1 / remaining if", "return (1 - share) + share * factor if"),
        ("wrong-amdahl", "remaining = (1 - share) + share / factor", "remaining = 1 / factor"),
        (
            "single-row",
            'seconds.get(row["kind"], 0.0) + row["self_s"]\n    kind =',
            'max(seconds.get(row["kind"], 0.0), row["self_s"])\n    kind =',
        ),
        ("wrong-share", "seconds[kind] / sum(seconds.values())", "seconds[kind] / len(rows)"),
        ("wrong-speedup", '"speedup": amdahl(share, factor)', '"speedup": amdahl(share, 2)'),
        ("wrong-limit", '"limit": amdahl(share, float("inf"))', '"limit": float("inf")'),
    ],
}
