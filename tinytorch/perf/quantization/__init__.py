"""What makes it smaller? Weights and activations in eight or four bits, calibrated and checked."""

from tinytorch.perf.quantization.calibration_result import Calibration
from tinytorch.perf.quantization.classic_functions import (
    Quantizer,
    analyze_model_sizes,
    dequantize_int8,
    quantize_int8,
    quantize_model,
    verify_quantization_works,
)
from tinytorch.perf.quantization.fine_tuning import fine_tune
from tinytorch.perf.quantization.int8_quantizer import INT8Quantizer
from tinytorch.perf.quantization.quantize import Quantize
from tinytorch.perf.quantization.quantized_conv2d import QuantizedConv2d
from tinytorch.perf.quantization.quantized_embeddings import (
    QuantizedEmbedding,
    QuantizedPositionalEmbedding,
)
from tinytorch.perf.quantization.quantized_linear import QuantizedLinear
from tinytorch.perf.quantization.saving import load_quantized, save_quantized
from tinytorch.perf.quantization.sensitivity import Sensitivity, measure_sensitivity

__all__ = [
    "Calibration",
    "INT8Quantizer",
    "Quantize",
    "QuantizedConv2d",
    "QuantizedEmbedding",
    "QuantizedLinear",
    "QuantizedPositionalEmbedding",
    "Quantizer",
    "Sensitivity",
    "analyze_model_sizes",
    "dequantize_int8",
    "fine_tune",
    "load_quantized",
    "measure_sensitivity",
    "quantize_int8",
    "quantize_model",
    "save_quantized",
    "verify_quantization_works",
]
