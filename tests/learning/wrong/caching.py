"""Typical wrong solutions of the lab on caching: the code of the hint, and what becomes what."""

VISIBLE = "    scores = np.where(visible, scores, -np.inf)\n"
SPLIT = "parts = projected.data.reshape(batch, new, layer.num_heads, layer.head_dim)"

RESET = "        self.position = 0\n\n    @property"

WRONG = {
    "attend": [
        ("mask-dropped", VISIBLE, ""),
        ("mask-dropped", VISIBLE, "    if new == total:\n    " + VISIBLE),
        (
            "mask-dropped",
            "np.tri(new, total, total - new, dtype=bool)",
            "np.ones((new, total), bool)",
        ),
        (
            "mask-misaligned",
            "np.tri(new, total, total - new, dtype=bool)",
            "np.tri(new, total, dtype=bool)",
        ),
        ("scale-missing", " / query.shape[-1] ** 0.5", ""),
        ("float64", "query.shape[-1] ** 0.5", "np.sqrt(query.shape[-1])"),
        (
            "overflow",
            "np.exp(scores - scores.max(axis=-1, keepdims=True))",
            "np.exp(scores)",
        ),
        (
            "wrong-attention",
            "weights.sum(axis=-1, keepdims=True)",
            "weights.sum(axis=-2, keepdims=True)",
        ),
        ("wrong-attention", "np.where(visible, scores, -np.inf)", "np.where(visible, scores, 0)"),
        ("inputs-changed", "    scores = query @", "    query *= 1.0001\n    scores = query @"),
    ],
    "cost": [
        ("macs", "return 2 * layers * new * (12", "return layers * new * (12"),
        ("past-missing", "2 * (past + new) * d)", "2 * new * d)"),
        ("wrong-pass", "12 * d**2", "4 * d**2"),
        ("wrong-past", "2 * (past + new) * d)", "(2 * new + past) * d)"),
        (
            "one-pass-too-many",
            "for done in range(count))\n    first",
            "for done in range(count + 1))\n    first",
        ),
        ("one-pass-too-many", "for done in range(count - 1))", "for done in range(count))"),
        ("cache-recomputes", "    if not cached:\n", "    if True:\n"),
        (
            "nothing-to-write",
            "pass_flops(prompt, 0, layers, d) if count else 0",
            "pass_flops(prompt, 0, layers, d)",
        ),
        (
            "wrong-with-cache",
            "pass_flops(1, prompt + done, layers, d)",
            "pass_flops(1, done, layers, d)",
        ),
        ("keys-only", "return 2 * batch * layers * tokens", "return batch * layers * tokens"),
        ("factor-missing", "return 2 * batch * layers * tokens", "return 2 * layers * tokens"),
    ],
    "cache": [
        (
            "moves-within-pass",
            "        return self.keys[layer, :, :, :end], self.values",
            "        self.position = end\n        return self.keys[layer, :, :, :end], self.values",
        ),
        (
            "whole-buffer",
            "return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]",
            "return self.keys[layer], self.values[layer]",
        ),
        (
            "past-missing",
            "return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]",
            "return key, value",
        ),
        (
            "wrong-content",
            "self.values[layer, :, :, self.position : end] = value",
            "self.values[layer, :, :, self.position : end] = key",
        ),
        (
            "wrong-content",
            "self.keys[layer, :, :, self.position : end] = key",
            "self.keys[layer, :, :, : end - self.position] = key",
        ),
        (
            "copies",
            "return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]",
            "return self.keys[layer, :, :, :end].copy(), self.values[layer, :, :, :end].copy()",
        ),
        ("wrong-nbytes", "return self.keys.nbytes + self.values.nbytes", "return self.keys.nbytes"),
        (
            "wrong-nbytes",
            "(layers, batch, heads, length, d), np.float32)",
            "(layers, batch, heads, length, d))",
        ),
        (
            "overflow-silent",
            "        if end > self.keys.shape[3]:\n            raise ValueError",
            "        if end > self.keys.shape[3] + 9:\n            raise ValueError",
        ),
        (
            "not-reset",
            "        self.position = 0\n\n    @property",
            "        self.keys[:] = 0\n\n    @property",
        ),
        (
            "reallocates",
            RESET,
            "        self.keys = np.zeros_like(self.keys)\n" + RESET,
        ),
        ("wrong-position", "        self.position += new", "        self.position = new"),
    ],
    "cached": [
        (
            "mask-dropped",
            "    mixed = attend(query, *cache.append(index, key, value))",
            "    keys, values = cache.append(index, key, value)\n"
            "    each = (attend(query[:, :, n : n + 1], keys, values) for n in range(new))\n"
            "    mixed = np.concatenate(list(each), axis=2)",
        ),
        (
            "wrong-prefill",
            "        " + SPLIT + "\n        return parts.swapaxes(1, 2)",
            "        return projected.data.reshape(batch, layer.num_heads, new, layer.head_dim)",
        ),
        ("wrong-prefill", "return layer.out_proj(Tensor(mixed", "return (Tensor(mixed"),
        ("wrong-prefill", "mixed.swapaxes(1, 2).reshape", "mixed.reshape"),
        (
            "wrong-piece",
            "attend(query, *cache.append(index, key, value))",
            "attend(query, key, value)",
        ),
        (
            "recomputes",
            "    query, key, value = (split",
            "    everything = np.zeros((batch, cache.position + new, x.shape[2]), np.float32)\n"
            "    layer.k_proj(Tensor(everything))\n"
            "    query, key, value = (split",
        ),
        (
            "advanced",
            "    return layer.out_proj(Tensor(mixed",
            "    cache.advance(new)\n    return layer.out_proj(Tensor(mixed",
        ),
    ],
    "write": [
        (
            "positions-restart",
            "model.token_embedding(ids), cache.position)",
            "model.token_embedding(ids), 0)",
        ),
        ("not-advanced", "        cache.advance(ids.shape[1])\n", ""),
        (
            "not-advanced",
            "            x = x + block.mlp",
            "            cache.advance(1)\n            x = x + block.mlp",
        ),
        ("wrong-logits", "x = x + block.mlp(block.norm2(x))", "x = block.mlp(block.norm2(x))"),
        ("wrong-logits", "model.head(model.norm(x[:, -1:]))", "model.head(x[:, -1:])"),
        ("wrong-shape", "(x[:, -1:])).data[:, -1]", "(x[:, -1:])).data"),
        (
            "recomputes",
            "        logits = next_logits(model, np.array([new]), cache)",
            "        cache.reset()\n        logits = next_logits(model, np.array([ids]), cache)",
        ),
        (
            "one-pass-too-many",
            "        ids += new\n",
            "        ids += new\n    if count:\n        cache.position -= 1\n"
            "        next_logits(model, np.array([new]), cache)\n",
        ),
        ("wrong-text", "int(logits[0].argmax())", "int(logits[0].argmin())"),
        ("wrong-text", "        ids += new\n", "        ids += [7]\n"),
        ("prompt-missing", "ids, new = list(prompt), list(prompt)", "ids, new = [], list(prompt)"),
        ("too-long", "length = len(prompt) + count", "length = 1024"),
    ],
    "growth": [
        (
            "wrong-exponent",
            "np.polyfit(np.log(sizes), np.log(times), 1)",
            "np.polyfit(sizes, times, 1)",
        ),
        (
            "wrong-exponent",
            "np.polyfit(np.log(sizes), np.log(times), 1)[0]",
            "np.polyfit(np.log(sizes), np.log(times), 1)[1]",
        ),
        (
            "ends-only",
            "np.polyfit(np.log(sizes), np.log(times), 1)[0]",
            "np.log(times[-1] / times[0]) / np.log(sizes[-1] / sizes[0])",
        ),
        ("negative", "return max(0, (total_bytes", "return max(-9, (total_bytes"),
        (
            "weights-missing",
            "(total_bytes - weight_bytes) // per_token",
            "total_bytes // per_token",
        ),
        (
            "not-whole",
            "(total_bytes - weight_bytes) // per_token",
            "(total_bytes - weight_bytes) / per_token",
        ),
        (
            "wrong-longest",
            "cache_bytes(1, layers, d, batch, bytes_per_number)\n",
            "cache_bytes(1, layers, d)\n",
        ),
    ],
}
