"""Wrong solutions of the lab on quantization: the code of the hint, and what becomes what."""

SCALE = "    scale = (high - low) / (highest - lowest)\n    if scale"
ROUND = "round(float(lowest - low / scale))"
QUANTIZE = "    return np.clip(np.rint(x / scale) + zero_point, lowest, highest).astype(np.int8)"
TOTAL = "    total = values.astype(np.int32) @ weight_values.astype(np.int32)"
SUMS = "zero_point * weight_values.sum(axis=0, dtype=np.int32)"
SEEN = "seen = calibrate([each.data for each in inputs], percentile)"
NEXT = "            inputs = [layer(each) for each in inputs]"

WRONG = {
    "grid": [
        ("off-by-one-step", SCALE, SCALE.replace("highest - lowest", "highest - lowest + 1")),
        ("bits-ignored", SCALE, SCALE.replace("(highest - lowest)", "255")),
        ("zero-not-whole", ROUND, "float(lowest - low / scale)"),
        ("unsigned-grid", ROUND, "round(float(-low / scale))"),
        ("wrong-zero-point", ROUND, "round(float(highest - low / scale))"),
        ("wrong-zero-point", ROUND, "0"),
        ("zero-outside", "    low, high = min(low, 0.0), max(high, 0.0)\n    lowest", "    lowest"),
        (
            "empty-range",
            "    if scale == 0:\n        return 1.0, 0\n",
            "    scale = max(scale, 1e-9)\n",
        ),
        ("truncated", QUANTIZE, QUANTIZE.replace("np.rint(x / scale)", "np.floor(x / scale)")),
        (
            "truncated",
            QUANTIZE,
            "    return np.clip((x / scale).astype(int) + zero_point, lowest, highest)"
            ".astype(np.int8)",
        ),
        (
            "wraps-around",
            QUANTIZE,
            "    return (np.rint(x / scale) + zero_point).astype(int).astype(np.int8)",
        ),
        ("wrong-values", QUANTIZE, QUANTIZE.replace("x / scale", "x * scale")),
        (
            "wrong-dtype",
            QUANTIZE,
            "    return np.clip(np.rint(x / scale) + zero_point, lowest, highest)",
        ),
        (
            "int8-overflow",
            "steps = values.astype(np.int32) - zero_point",
            "steps = values - np.int8(zero_point)",
        ),
        (
            "zero-inexact",
            "steps = values.astype(np.int32) - zero_point",
            "steps = values.astype(np.int32) - zero_point + 0.5",
        ),
        (
            "wrong-dtype",
            "    return (steps * scale).astype(np.float32)",
            "    return steps * scale",
        ),
    ],
    "channels": [
        ("raised", "max(axis=0 if per_channel", "max(axis=1 if per_channel"),
        (
            "wrong-axis",
            "    values = np.clip(np.rint(weight / scales)",
            "    scales = (np.abs(weight).max(axis=1) / highest).astype(np.float32)\n"
            "    values = np.clip(np.rint(weight / scales[:, None])",
        ),
        (
            "one-scale",
            "largest = np.abs(weight).max(axis=0 if per_channel else None)",
            "largest = np.abs(weight).max()",
        ),
        (
            "one-scale",
            "    values = np.clip(np.rint(weight / scales)",
            "    scales = np.full_like(scales, scales.max())\n"
            "    values = np.clip(np.rint(weight / scales)",
        ),
        ("sign-forgotten", "largest = np.abs(weight).max(", "largest = weight.max("),
        ("off-by-one-step", "largest / highest, 1)", "largest / (highest + 1), 1)"),
        (
            "bits-ignored",
            "    highest = 2 ** (bits - 1) - 1\n    largest",
            "    highest = 127\n    largest",
        ),
        ("wrong-values", "np.clip(np.rint(weight / scales)", "np.clip(np.floor(weight / scales)"),
        (
            "always-per-channel",
            "max(axis=0 if per_channel else None)",
            "max(axis=0)",
        ),
        (
            "zero-column",
            "np.where(largest > 0, largest / highest, 1).astype(np.float32)",
            "(largest / highest).astype(np.float32)",
        ),
    ],
    "calibrate": [
        (
            "percentile-ignored",
            "np.percentile(numbers, [100 - percentile, percentile])",
            "numbers.min(), numbers.max()",
        ),
        (
            "one-batch",
            "np.concatenate([np.ravel(each) for each in batches])",
            "np.ravel(batches[-1])",
        ),
        (
            "mean-of-batches",
            "    low, high = np.percentile(numbers, [100 - percentile, percentile])\n",
            "    ends = [np.percentile(each, [100 - percentile, percentile]) for each in batches]\n"
            "    low, high = np.mean(ends, axis=0)\n",
        ),
        (
            "per-batch",
            "    low, high = np.percentile(numbers, [100 - percentile, percentile])\n",
            "    ends = [np.percentile(each, [100 - percentile, percentile]) for each in batches]\n"
            "    low, high = min(e[0] for e in ends), max(e[1] for e in ends)\n",
        ),
        ("no-zero", "min(float(low), 0.0), max(float(high), 0.0)", "float(low), float(high)"),
        (
            "half-the-share",
            "[100 - percentile, percentile])",
            "[50 - percentile / 2, 50 + percentile / 2])",
        ),
        ("one-side", "[100 - percentile, percentile])", "[0, percentile])"),
        (
            "wrong-percentile",
            "np.percentile(numbers, [100 - percentile, percentile])",
            "percentile / 100 * numbers.min(), percentile / 100 * numbers.max()",
        ),
    ],
    "integer": [
        ("bias-missing", "(scale * weight_scales) + bias)", "(scale * weight_scales))"),
        (
            "bias-scaled",
            "(total * (scale * weight_scales) + bias)",
            "((total + bias) * (scale * weight_scales))",
        ),
        ("scale-missing", "total * (scale * weight_scales)", "total * weight_scales"),
        (
            "zero-point-missing",
            f"    total = total - {SUMS}\n",
            "",
        ),
        ("zero-point-added", f"total - {SUMS}", f"total + {SUMS}"),
        ("sum-of-all", SUMS, "zero_point * weight_values.sum(dtype=np.int32)"),
        ("sums-missing", f"total - {SUMS}", "total - zero_point"),
        (
            "sums-of-inputs",
            SUMS,
            "zero_point * values.sum(axis=1, keepdims=True, dtype=np.int32)",
        ),
        ("overflow", TOTAL, "    total = (values @ weight_values).astype(np.int32)"),
        (
            "overflow",
            TOTAL,
            "    total = values.astype(np.int16) @ weight_values.astype(np.int16)",
        ),
        (
            "overflow",
            SUMS,
            "(np.int8(zero_point) * weight_values).sum(axis=0, dtype=np.int32)",
        ),
        ("float-product", TOTAL, TOTAL.replace("np.int32", "np.float32")),
        ("float-product", TOTAL, TOTAL.replace("np.int32", "np.float64")),
        (
            "float-product",
            TOTAL,
            "    total = np.einsum('ri,io->ro', 1.0 * values, weight_values).astype(int)",
        ),
        ("not-int32", TOTAL, TOTAL.replace("np.int32", "np.int64")),
        (
            "wrong-dtype",
            "(total * (scale * weight_scales) + bias).astype(np.float32)",
            "(total * (scale * weight_scales.astype(np.float64)) + bias)",
        ),
    ],
    "quantized": [
        (
            "float-layer",
            "        self.scale, self.zero_point = affine(low, high)\n",
            "        self.scale, self.zero_point = affine(low, high)\n"
            "        self.forward = lambda x: linear(x)\n",
        ),
        (
            "wrong-layer",
            "values, scales = quantize_weight(linear.weight.data)",
            "values, scales = quantize_weight(linear.weight.data, per_channel=False)",
        ),
        (
            "wrong-layer",
            "self.values, self.scales = Tensor(values), Tensor(scales)",
            "self.values, self.scales = Tensor(values), Tensor(scales[::-1].copy())",
        ),
        (
            "not-clipped",
            "        values = quantize(x.data, self.scale, self.zero_point)\n",
            "        low, high = x.data.min(), x.data.max()\n"
            "        self.scale, self.zero_point = affine(low, high)\n"
            "        values = quantize(x.data, self.scale, self.zero_point)\n",
        ),
        (
            "holds-floats",
            "        self.bias = Tensor(linear.bias.data.copy())\n",
            "        self.bias = Tensor(linear.bias.data.copy())\n        self.linear = linear\n",
        ),
        (
            "holds-floats",
            "self.values, self.scales = Tensor(values), Tensor(scales)",
            "self.values, self.scales = Tensor(values.astype(np.float32)), Tensor(scales)\n"
            "        self.values.data = values.astype(np.int32)",
        ),
        (
            "range-of-the-model",
            SEEN,
            "seen = calibrate(batches, percentile)",
        ),
        ("range-of-the-model", NEXT, "            pass"),
        (
            "wrong-range",
            SEEN,
            "seen = calibrate([layer(each).data for each in inputs], percentile)",
        ),
        (
            "percentile-ignored",
            SEEN,
            "seen = calibrate([each.data for each in inputs])",
        ),
        (
            "model-changed",
            f"{NEXT}\n    return Sequential(*layers)\n",
            f"{NEXT}\n    model.layers[:] = layers\n    return model\n",
        ),
        (
            "layer-left",
            "        if isinstance(layer, Linear):\n            seen",
            "        if isinstance(layer, Linear) and layer is not model.layers[-1]:\n"
            "            seen",
        ),
    ],
    "limits": [
        (
            "not-packed",
            "    return nibbles[0::2] | (nibbles[1::2] << 4)",
            "    return (values.ravel() & 15).astype(np.uint8)",
        ),
        ("sign-lost", "    signed[signed > 7] -= 16\n", ""),
        (
            "raised",
            "    if nibbles.size % 2:\n        nibbles = np.append(nibbles, np.uint8(0))\n",
            "",
        ),
        ("swapped", "np.stack([packed & 15, packed >> 4]", "np.stack([packed >> 4, packed & 15]"),
        (
            "wrong-values",
            "np.stack([packed & 15, packed >> 4], axis=-1)",
            "np.stack([packed & 15, packed >> 4], axis=0)",
        ),
        ("memory-ignored", 'if each["bytes"] <= max_bytes and each["ms"]', 'if each["ms"]'),
        ("latency-ignored", ' and each["ms"] <= max_ms', ""),
        ("limit-excluded", 'each["ms"] <= max_ms', 'each["ms"] < max_ms'),
        (
            "not-most-accurate",
            '(-options[name]["accuracy"], options[name]["bytes"])',
            'options[name]["bytes"]',
        ),
        (
            "tie",
            '(-options[name]["accuracy"], options[name]["bytes"])',
            '(-options[name]["accuracy"], -options[name]["bytes"])',
        ),
        ("raised", "min(fitting, key=order.get, default=None)", "min(fitting, key=order.get)"),
    ],
}
