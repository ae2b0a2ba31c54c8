"""What makes it smaller? Weights and activations in eight or four bits, calibrated and checked."""

from tinytorch.transforms.quantize import Calibration, Quantize
from tinytorch.transforms.quantize.classic import (
    INT8Quantizer,
    Quantizer,
    analyze_model_sizes,
    dequantize_int8,
    quantize_int8,
    quantize_model,
    verify_quantization_works,
)
from tinytorch.transforms.quantize.fine_tuning import fine_tune
from tinytorch.transforms.quantize.layers import (
    QuantizedConv2d,
    QuantizedEmbedding,
    QuantizedLinear,
    QuantizedPositionalEmbedding,
)
from tinytorch.transforms.quantize.saving import load_quantized, save_quantized
from tinytorch.transforms.quantize.sensitivity import Sensitivity, measure_sensitivity

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
