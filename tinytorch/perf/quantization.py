"""What makes it smaller? Weights and activations in eight or four bits, calibrated and checked."""

from tinytorch.transforms.activation_aware import (
    ActivationAwareQuantize as ActivationAwareQuantize,
)
from tinytorch.transforms.quantize import Quantize as Quantize
from tinytorch.transforms.quantize.classic import INT8Quantizer as INT8Quantizer
from tinytorch.transforms.quantize.classic import Quantizer as Quantizer
from tinytorch.transforms.quantize.classic import analyze_model_sizes as analyze_model_sizes
from tinytorch.transforms.quantize.classic import dequantize_int8 as dequantize_int8
from tinytorch.transforms.quantize.classic import quantize_int8 as quantize_int8
from tinytorch.transforms.quantize.classic import quantize_model as quantize_model
from tinytorch.transforms.quantize.classic import (
    verify_quantization_works as verify_quantization_works,
)
from tinytorch.transforms.quantize.fine_tuning import fine_tune as fine_tune
from tinytorch.transforms.quantize.layers import QuantizedConv2d as QuantizedConv2d
from tinytorch.transforms.quantize.layers import QuantizedEmbedding as QuantizedEmbedding
from tinytorch.transforms.quantize.layers import QuantizedLinear as QuantizedLinear
from tinytorch.transforms.quantize.layers import (
    QuantizedPositionalEmbedding as QuantizedPositionalEmbedding,
)
from tinytorch.transforms.quantize.saving import load_quantized as load_quantized
from tinytorch.transforms.quantize.saving import save_quantized as save_quantized
from tinytorch.transforms.quantize.sensitivity import Sensitivity as Sensitivity
from tinytorch.transforms.quantize.sensitivity import measure_sensitivity as measure_sensitivity
