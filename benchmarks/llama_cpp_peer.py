"""llama.cpp as the other side of generation.py: the same weights, in a process of its own.

This file also runs alone, in an interpreter that has llama-cpp-python, gguf and NumPy but none of
our packages:

    python benchmarks/llama_cpp_peer.py write WEIGHTS.npz FOLDER   # the model files
    python benchmarks/llama_cpp_peer.py serve FD                   # take turns

It calls the C functions directly, since the Python class around them copies every logit.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import interleaving
import numpy as np
from interleaving import Run, Side

PYTHON_VARIABLE = "TINYTORCH_LLAMA_PYTHON"
FORMATS = ("f32", "q8_0", "q4_0")
NEEDED = ("llama_cpp", "gguf")

# Names of our layers, by the names that llama.cpp has for those of GPT-2.
LAYERS = {
    "attn_norm": "norm1",
    "attn_output": "attention.out_proj",
    "ffn_norm": "norm2",
    "ffn_up": "mlp.layers.0",
    "ffn_down": "mlp.layers.2",
}
ATTENDING = tuple(f"attention.{part}_proj" for part in "qkv")

# ---------------------------------------------------------------- seen from our side


def find_python(given: str | None) -> str | None:
    """Give an interpreter that has llama-cpp-python, or None."""
    chosen = given or os.environ.get(PYTHON_VARIABLE)
    if chosen is None:
        has_all = all(importlib.util.find_spec(name) for name in NEEDED)
        return sys.executable if has_all else None
    found = subprocess.run([chosen, "-c", f"import {', '.join(NEEDED)}"], capture_output=True)
    if found.returncode:
        raise SystemExit(f"{chosen} cannot import {' and '.join(NEEDED)}: {found.stderr.decode()}")
    return chosen


def write_models(python: str, arrays: dict[str, np.ndarray], heads: int, folder: Path) -> None:
    """Write our weights as one model file for each of FORMATS, such as `folder/f32.gguf`."""
    weights = folder / "weights.npz"
    np.savez(weights, heads=heads, **arrays)
    subprocess.run([python, __file__, "write", str(weights), str(folder)], check=True)
    weights.unlink()


def describe(python: str) -> str:
    """Give the version, and what of this processor it was compiled for."""
    answer = subprocess.run([python, __file__, "describe"], check=True, capture_output=True)
    return answer.stdout.decode().strip()


@contextmanager
def peer(python: str) -> Iterator[Side]:
    """Start a process that builds and times llama.cpp, see `build`."""
    ours, theirs = Pipe()
    fd = theirs.fileno()
    process = subprocess.Popen([python, __file__, "serve", str(fd)], pass_fds=[fd])
    theirs.close()
    try:
        yield Side(ours)
    finally:
        process.terminate()
        process.wait()


# ---------------------------------------------------------------- in the process of llama.cpp


def write_f32(weights: Path, path: Path) -> None:
    """Write a GPT-2 with our weights and without words: it gets and gives token numbers."""
    import gguf

    arrays = np.load(weights)
    vocabulary, dim = arrays["token_embedding.weight"].shape
    layers = 1 + max(int(name.split(".")[1]) for name in arrays if name.startswith("blocks."))
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_context_length(len(arrays["position_embedding.weight"]))
    writer.add_embedding_length(dim)
    writer.add_feed_forward_length(arrays["blocks.0.mlp.layers.0.bias"].size)
    writer.add_block_count(layers)
    writer.add_head_count(int(arrays["heads"]))
    writer.add_layer_norm_eps(1e-5)
    writer.add_vocab_size(vocabulary)
    writer.add_tokenizer_model("none")
    writer.add_tensor("token_embd.weight", arrays["token_embedding.weight"])
    writer.add_tensor("position_embd.weight", arrays["position_embedding.weight"])
    for kind in ("weight", "bias"):
        writer.add_tensor(f"output_norm.{kind}", arrays[f"norm.{kind}"])
        for layer in range(layers):
            qkv = [arrays[f"blocks.{layer}.{part}.{kind}"] for part in ATTENDING]
            writer.add_tensor(f"blk.{layer}.attn_qkv.{kind}", _turned(np.concatenate(qkv, axis=-1)))
            for name, ours in LAYERS.items():
                array = arrays[f"blocks.{layer}.{ours}.{kind}"]
                writer.add_tensor(f"blk.{layer}.{name}.{kind}", _turned(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _turned(array: np.ndarray) -> np.ndarray:
    """Our matrices are (inputs, outputs), those of llama.cpp (outputs, inputs)."""
    return np.ascontiguousarray(array.T)


def quantize(source: Path, path: Path) -> None:
    """Write a quantized model as llama.cpp itself does it; the name of the file is the format.

    With q4_0, it leaves the token embedding, which is also the head, in a finer format.
    """
    import llama_cpp

    settings = llama_cpp.llama_model_quantize_default_params()
    settings.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{path.stem.upper()}")
    names = (str(each).encode() for each in (source, path))
    if llama_cpp.llama_model_quantize(*names, ctypes.byref(settings)):
        raise SystemExit(f"llama.cpp could not write {path.name}")


class Model:
    """A loaded model with its cache."""

    def __init__(self, path: str, *, threads: int, context: int) -> None:
        import llama_cpp

        self.library = llama_cpp
        loading = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), loading)
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = context
        settings.n_threads = settings.n_threads_batch = threads
        if hasattr(settings, "n_outputs_max_per_seq"):
            settings.n_outputs_max_per_seq = 0  # logits of as many tokens as are asked for
        self._context = llama_cpp.llama_init_from_model(self._model, settings)
        if not self._context:
            raise RuntimeError(f"llama.cpp could not load {path}")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(context, 0, 1)
        for place in range(context):
            self._batch.n_seq_id[place] = 1
            self._batch.seq_id[place][0] = 0
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(vocabulary)

    def evaluate(self, tokens: list[int], start: int, *, all_logits: bool = False) -> Any:
        """Compute tokens from position `start` on, and wait for the logits of the last or of all.

        What the cache held from there on is forgotten.
        """
        batch = self._batch
        self.library.llama_memory_seq_rm(self._memory, 0, start, -1)
        batch.n_tokens = len(tokens)
        for place, token in enumerate(tokens):
            batch.token[place] = token
            batch.pos[place] = start + place
            batch.logits[place] = all_logits
        batch.logits[len(tokens) - 1] = True
        if self.library.llama_decode(self._context, batch):
            raise RuntimeError(f"llama.cpp could not evaluate {len(tokens)} tokens")
        if all_logits:
            return self.library.llama_get_logits(self._context)
        return self.library.llama_get_logits_ith(self._context, -1)

    def logits(self, tokens: list[int], start: int) -> np.ndarray:
        """Give the logits (tokens, vocabulary)."""
        pointer = self.evaluate(tokens, start, all_logits=True)
        return np.ctypeslib.as_array(pointer, (len(tokens), self.vocab_size)).copy()

    def close(self) -> None:
        self.library.llama_batch_free(self._batch)
        self.library.llama_free(self._context)
        self.library.llama_model_free(self._model)


_loaded: list[Model] = []  # at most one


def build(
    path: str, task: str, prompt: list[int], decoded: list[int], threads: int, context: int
) -> tuple[Run, Callable[[], np.ndarray]]:
    """Load a model to do a task with it: `decode`, `prefill` or `prefill last`.

    The logits to check are of the prompt and of the tokens decoded after it.
    """
    while _loaded:
        _loaded.pop().close()
    model = Model(path, threads=threads, context=context)
    _loaded.append(model)

    def decode() -> None:
        for position, token in enumerate(decoded, len(prompt)):
            model.evaluate([token], position)

    def check() -> np.ndarray:
        first = model.logits(prompt, 0)
        rest = [model.logits([token], at) for at, token in enumerate(decoded, len(prompt))]
        return np.concatenate([first, *rest])

    tasks: dict[str, Run] = {
        "decode": decode,
        "prefill": lambda: model.evaluate(prompt, 0, all_logits=True),
        "prefill last": lambda: model.evaluate(prompt, 0),
    }
    return tasks[task], check


def _keep_quiet() -> Any:
    import llama_cpp

    silence = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(silence, ctypes.c_void_p(0))
    return silence  # it must live as long as the library may call it


def main() -> None:
    import llama_cpp

    verb, *arguments = sys.argv[1:]
    silence = _keep_quiet()
    if verb == "describe":
        features = llama_cpp.llama_print_system_info().decode().strip(" |")
        print(f"llama-cpp-python {llama_cpp.__version__} ({features})")
    elif verb == "write":
        weights, folder = map(Path, arguments)
        write_f32(weights, folder / "f32.gguf")
        for name in FORMATS[1:]:
            quantize(folder / "f32.gguf", folder / f"{name}.gguf")
    else:
        interleaving.serve(Connection(int(arguments[0])), build)
    del silence


if __name__ == "__main__":
    main()
