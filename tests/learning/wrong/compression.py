"""Wrong solutions of the lab on compression: the code of the hint, and what becomes what."""

SIZES = "magnitudes = np.concatenate([np.abs(each).ravel() for each in weights])"
GONE = (
    '    kept[np.argsort(magnitudes, kind="stable")[: round(sparsity * magnitudes.size)]] = False\n'
)
STEP = "        optimizer.step()\n        put_on()\n"
INPUTS = "inputs = (left[:, None] * each + np.arange(each)).ravel()"
TAKEN = "weight, bias = weight.take(left, axis=outs), bias[left]"
FACTORS = "return left[:, :rank] * values[:rank], right[:rank]"
RANK = "return (inputs * outputs - 1) // (inputs + outputs)"
LOST = "lost <= error**2 * lost[0]"
KL = "divergence = (Tensor(np.exp(log_p)) * (Tensor(log_p) - log_q)).sum() * (1 / len(teacher))"
BOTH = "return divergence * (alpha * temperature**2) + plain * (1 - alpha)"
BITMAP = "(weight.size + 7) // 8 + 4 * kept"
SPARSE = "sum(each.nbytes for each in to_sparse(weight))"

WRONG = {
    "masks": [
        ("largest-pruned", GONE, GONE.replace("[: round(", "[::-1][: round(")),
        (
            "mask-inverted",
            "part.reshape(each.shape) for part",
            "~part.reshape(each.shape) for part",
        ),
        ("sign-forgotten", SIZES, SIZES.replace("np.abs(each)", "each")),
        (
            "per-layer",
            f"    {SIZES}\n",
            "    if len(weights) > 1:\n"
            "        return [magnitude_masks([each], sparsity)[0] for each in weights]\n"
            f"    {SIZES}\n",
        ),
        ("wrong-count", "round(sparsity * magnitudes.size)", "int(sparsity * magnitudes.size)"),
        (
            "ties",
            GONE,
            "    count = round(sparsity * magnitudes.size)\n"
            "    if count:\n"
            "        kept = magnitudes > np.sort(magnitudes)[count - 1]\n",
        ),
        (
            "not-bool",
            "part.reshape(each.shape) for part",
            "part.reshape(each.shape).astype(int) for part",
        ),
        (
            "percent",
            "return zeros / sum(each.size for each in weights)",
            "return 100 * zeros / sum(each.size for each in weights)",
        ),
        (
            "mean-of-layers",
            "return zeros / sum(each.size for each in weights)",
            "return np.mean([(each == 0).mean() for each in weights])",
        ),
        ("density", "int((each == 0).sum())", "int((each != 0).sum())"),
    ],
    "recover": [
        ("zeros-lost", STEP, "        optimizer.step()\n"),
        (
            "mask-late",
            STEP,
            "        optimizer.step()\n        if inputs is batches[-1][0]:\n"
            "            put_on()\n",
        ),
        (
            "zeros-lost",
            STEP,
            "        for parameter, kept in pairs:\n"
            "            parameter.grad = parameter.grad * kept\n"
            "        optimizer.step()\n",
        ),
        ("zeros-lost", STEP, "        put_on()\n        optimizer.step()\n"),
        ("not-before-first", "    put_on()\n    losses = []", "    losses = []"),
        (
            "no-zero-grad",
            "        optimizer.zero_grad()\n        error = loss",
            "        error = loss",
        ),
        ("not-trained", STEP, ""),
        ("wrong-losses", "losses.append(float(error.data))", "losses = [float(error.data)]"),
        (
            "wrong-training",
            "        losses.append(float(error.data))\n    return losses",
            "        losses.append(float(error.data))\n    for parameter, _ in pairs:\n"
            "        parameter.data = parameter.data * np.float32(0.5)\n    return losses",
        ),
    ],
    "shrink": [
        (
            "weakest",
            "np.sort(np.argsort(norms)[len(norms) - count :])",
            "np.sort(np.argsort(norms)[:count])",
        ),
        (
            "unsorted",
            "np.sort(np.argsort(norms)[len(norms) - count :])",
            "np.argsort(norms)[len(norms) - count :][::-1]",
        ),
        (
            "wrong-outputs",
            "np.sqrt((layer.weight.data**2).sum(axis=axes))",
            "layer.weight.data.sum(axis=axes)",
        ),
        (
            "wrong-outputs",
            "axes = 0 if isinstance(layer, Linear) else (1, 2, 3)",
            "axes = 0 if isinstance(layer, Linear) else (0, 2, 3)",
        ),
        (
            "inputs-kept",
            "        if left is not None:\n            each =",
            "        if False:\n            each =",
        ),
        ("not-removed", "            " + TAKEN, "            pass"),
        ("bias-kept", TAKEN, "weight = weight.take(left, axis=outs)"),
        ("wrong-bias", TAKEN, "weight, bias = weight.take(left, axis=outs), bias[: len(left)]"),
        (
            "wrong-channels",
            TAKEN,
            "weight = weight.take(np.arange(len(left)), axis=outs)\n            bias = bias[left]",
        ),
        ("wrong-inputs-kept", INPUTS, "inputs = np.arange(len(left) * each)"),
        ("flatten-blocks", INPUTS, "inputs = left"),
        ("wrong-inputs-kept", INPUTS, "inputs = (left + count * np.arange(each)[:, None]).ravel()"),
        (
            "model-changed",
            "        layers.append(made_like(layer, weight, bias))\n    return Sequential",
            "        layer.bias.data[:] = 0\n"
            "        layers.append(made_like(layer, weight, bias))\n    return Sequential",
        ),
    ],
    "factors": [
        ("rank-ignored", FACTORS, "return left * values, right"),
        ("values-missing", FACTORS, "return left[:, :rank], right[:rank]"),
        (
            "values-twice",
            FACTORS,
            "return left[:, :rank] * values[:rank], values[:rank, None] * right[:rank]",
        ),
        ("smallest-kept", FACTORS, "return left[:, -rank:] * values[-rank:], right[-rank:]"),
        ("wrong-shape", FACTORS, "return right[:rank].T, (left[:, :rank] * values[:rank]).T"),
        ("does-not-pay", RANK, "return inputs * outputs // (inputs + outputs)"),
        ("does-not-pay", RANK, "return min(inputs, outputs)"),
        ("not-whole", RANK, "return (inputs * outputs - 1) / (inputs + outputs)"),
        ("rank-too-low", RANK, "return min(inputs, outputs) // 2 - 1"),
        ("error-not-squared", LOST, "lost <= error * lost[0]"),
        ("no-squares", "np.float64) ** 2", "np.float64)"),
        ("rank-too-high", f"np.argmax({LOST})", f"np.argmax({LOST}) + 1"),
        ("rank-too-low", f"np.argmax({LOST})", f"np.argmax({LOST}) - 1"),
    ],
    "distill": [
        ("temperature-ignored", "scaled = logits / temperature", "scaled = logits"),
        ("temperature-inverse", "scaled = logits / temperature", "scaled = logits * temperature"),
        (
            "no-logarithm",
            "return scaled - np.log(np.exp(scaled).sum(axis=-1, keepdims=True))",
            "return np.exp(scaled) / np.exp(scaled).sum(axis=-1, keepdims=True)",
        ),
        ("overflow", "    scaled = scaled - scaled.max(axis=-1, keepdims=True)\n", ""),
        (
            "overflow",
            "return scaled - np.log(np.exp(scaled).sum(axis=-1, keepdims=True))",
            "return np.log(np.exp(scaled) / np.exp(scaled).sum(axis=-1, keepdims=True))",
        ),
        ("t-squared-missing", BOTH, "return divergence * alpha + plain * (1 - alpha)"),
        (
            "t-for-t-squared",
            BOTH,
            "return divergence * (alpha * temperature) + plain * (1 - alpha)",
        ),
        (
            "alpha-swapped",
            BOTH,
            "return divergence * ((1 - alpha) * temperature**2) + plain * alpha",
        ),
        (
            "kl-reversed",
            KL,
            "q = Tensor(np.exp(log_q.data))\n"
            "    divergence = (q * (log_q - Tensor(log_p))).sum() * (1 / len(teacher))",
        ),
        ("sum-for-mean", KL, KL.replace(" * (1 / len(teacher))", "")),
        ("mean-of-classes", KL, KL.replace("(1 / len(teacher))", "(1 / teacher.size)")),
        ("student-not-softened", "student * (1 / temperature)", "student"),
        (
            "labels-softened",
            "CrossEntropyLoss()(student, labels)",
            "CrossEntropyLoss()(student * (1 / temperature), labels)",
        ),
        (
            "entropy-missing",
            KL,
            "divergence = -(Tensor(np.exp(log_p)) * log_q).sum() * (1 / len(teacher))",
        ),
        (
            "wrong-gradient",
            "log_q = LogSoftmax()(student * (1 / temperature))",
            "log_q = Tensor(log_softened(student.data, temperature))",
        ),
    ],
    "weigh": [
        ("starts-short", "np.append(0, np.cumsum(counts))", "np.append(0, np.cumsum(counts))[:-1]"),
        ("not-cumulative", "np.append(0, np.cumsum(counts))", "np.append(0, counts)"),
        (
            "wrong-starts",
            "np.bincount(rows, minlength=len(weight))",
            "np.unique(rows, return_counts=True)[1]",
        ),
        (
            "columns-first",
            "    rows, columns = np.nonzero(weight)\n    counts",
            "    columns, rows = np.nonzero(weight.T)\n    counts",
        ),
        ("wrong-dtype", "columns.astype(np.uint16), starts", "columns, starts"),
        (
            "zeros-kept",
            "np.nonzero(weight)\n    counts",
            "np.nonzero(np.ones_like(weight))\n    counts",
        ),
        ("raised", "np.repeat(np.arange(shape[0]), np.diff(starts))", "starts"),
        (
            "wrong-matrix",
            "np.repeat(np.arange(shape[0]), np.diff(starts))",
            "np.sort(np.arange(len(values)) % shape[0])",
        ),
        ("byte-per-bit", BITMAP, "weight.size + 4 * kept"),
        ("half-a-byte", BITMAP, "weight.size // 8 + 4 * kept"),
        ("places-missing", BITMAP, "4 * kept"),
        ("starts-missing", SPARSE, "6 * kept"),
        (
            "wrong-deflated",
            "zlib.compress(weight.tobytes(), 9)",
            "zlib.compress(weight.tobytes(), 1)",
        ),
        ("wrong-dense", '"dense": weight.nbytes', '"dense": 4 * kept'),
    ],
}
