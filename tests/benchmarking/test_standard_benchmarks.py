import numpy as np
import pytest

from tinytorch.benchmarking.mlperf import STANDARD_BENCHMARKS
from tinytorch.models.zoo import CONTEXT, load_zoo, tokenizer


@pytest.mark.parametrize("name", STANDARD_BENCHMARKS)
def test_the_data_is_real_and_as_described(name):
    benchmark = STANDARD_BENCHMARKS[name]
    data = benchmark.load_data()
    inputs, targets = (tensor.data for tensor in data.tensors)
    assert inputs.shape[1:] == benchmark.input_shape[1:]
    assert f"{len(data):,} held-out" in benchmark.description
    assert len(np.unique(targets)) >= 10, "no class alone can be guessed"


@pytest.mark.parametrize("name", ["digits_mlp", "digits_cnn"])
def test_the_reference_is_what_the_zoo_reaches(name):
    benchmark = STANDARD_BENCHMARKS[name]
    work = load_zoo(benchmark.reference)
    assert work.evaluate(work.model).mean() == pytest.approx(benchmark.reference_accuracy, abs=5e-5)
    assert benchmark.target_accuracy == 0.99 * benchmark.reference_accuracy


def test_targets_are_possible_and_no_constant_meets_them():
    for benchmark in STANDARD_BENCHMARKS.values():
        targets = benchmark.load_data().tensors[1].data
        most_common = np.unique(targets, return_counts=True)[1].max() / targets.size
        assert most_common < benchmark.target_accuracy < benchmark.reference_accuracy < 1
        assert 0 < benchmark.target_latency_ms <= 100


def test_texts_are_windows_of_the_context():
    assert STANDARD_BENCHMARKS["text_gpt"].input_shape == (1, CONTEXT)
    assert (
        STANDARD_BENCHMARKS["text_gpt"].load_data().tensors[1].data.max() < tokenizer().vocab_size
    )
