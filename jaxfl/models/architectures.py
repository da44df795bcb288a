"""The papers' models: linear and logistic regression, MLPs, LeNets, and convolutions whose trunk
describes images.

Constructors are cached, so equal arguments return the same `Model` and `jit` compiles once.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxfl.domains import Count, Shape, Share, checked
from jaxfl.models import Model, Trunk, binary_cross_entropy, cross_entropy, squared_error
from jaxfl.models.adapters import from_flax
from jaxfl.models.convolutions import convolve

Array = jax.Array
Activation = Literal["relu", "tanh", "sigmoid", "gelu", "gelu_tanh", "silu", "elu", "leaky_relu"]


def _symmetric_uniform(bound: float) -> Callable[..., Array]:
    def initializer(
        key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32, **_: Any
    ) -> Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return initializer


def _dense(features: int, fan_in: int) -> nn.Dense:
    """A dense layer drawn from U(-1/sqrt(fan_in), 1/sqrt(fan_in)), weights and bias: PyTorch's
    default, which the papers' experiments start from."""
    uniform = _symmetric_uniform(fan_in**-0.5)
    return nn.Dense(features, kernel_init=uniform, bias_init=uniform)


class _Convolution(nn.Module):
    features: int
    size: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        channels = x.shape[-1]
        uniform = _symmetric_uniform((channels * self.size**2) ** -0.5)
        kernel = self.param("kernel", uniform, (self.size, self.size, channels, self.features))
        return convolve(x, kernel) + self.param("bias", uniform, (self.features,))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": nn.relu,
    "tanh": nn.tanh,
    "sigmoid": nn.sigmoid,
    "gelu": functools.partial(nn.gelu, approximate=False),
    "gelu_tanh": nn.gelu,
    "silu": nn.silu,
    "elu": nn.elu,
    "leaky_relu": nn.leaky_relu,
}
"""By the names of `torch.nn.functional`, with the numbers that PyTorch has by default;
"gelu_tanh" is its `gelu(approximate="tanh")`."""


class _MLP(nn.Module):
    widths: tuple[int, ...]
    batch_norm: bool = False
    activation: str = "relu"
    takes_records: ClassVar[bool] = True

    @nn.compact
    def __call__(self, x: Array, mask: Array | None = None) -> Array:
        x = x.reshape(x.shape[0], -1)
        for width in self.widths[:-1]:
            x = _dense(width, x.shape[-1])(x)
            if self.batch_norm:
                rows = None if mask is None else mask[:, None]
                x = nn.BatchNorm(use_running_average=False)(x, mask=rows)
            x = ACTIVATIONS[self.activation](x)
        return _dense(self.widths[-1], x.shape[-1])(x)


class _DropoutMLP(nn.Module):
    """A module of its own: one that has a switch for training is not read by its layers."""

    widths: tuple[int, ...]
    activation: str
    dropout: float

    @nn.compact
    def __call__(self, x: Array, train: bool = False) -> Array:
        x = x.reshape(x.shape[0], -1)
        for width in self.widths[:-1]:
            x = ACTIVATIONS[self.activation](_dense(width, x.shape[-1])(x))
            x = nn.Dropout(self.dropout, deterministic=not train)(x)
        return _dense(self.widths[-1], x.shape[-1])(x)


def _pooled(x: Array) -> Array:
    """The largest of every 2x2 pixels. As a maximum over axes its derivative is faster on CPUs than
    a window's."""
    batch, height, width, channels = x.shape
    return x.reshape(batch, height // 2, 2, width // 2, 2, channels).max((2, 4))


class _LeNetMNIST(nn.Module):
    @nn.compact
    def __call__(self, x: Array, train: bool = False) -> Array:
        x = nn.relu(_pooled(_Convolution(10, 5)(x)))
        x = _Convolution(20, 5)(x)
        x = nn.Dropout(0.5, broadcast_dims=(1, 2), deterministic=not train)(
            x
        )  # whole channels, as PyTorch's Dropout2d
        x = nn.relu(_pooled(x)).reshape(x.shape[0], -1)
        x = nn.Dropout(0.5, deterministic=not train)(nn.relu(_dense(50, x.shape[-1])(x)))
        return _dense(10, 50)(x)


class _LeNetCIFAR(nn.Module):
    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = _pooled(nn.relu(_Convolution(6, 5)(x)))
        x = _pooled(nn.relu(_Convolution(16, 5)(x))).reshape(x.shape[0], -1)
        for width in (120, 84):
            x = nn.relu(_dense(width, x.shape[-1])(x))
        return _dense(10, 84)(x)


class _PaddedConvolution(nn.Module):
    features: int
    stride: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        kernel = self.param(
            "kernel", nn.initializers.glorot_uniform(), (3, 3, x.shape[-1], self.features)
        )
        return convolve(x, kernel, self.stride, "SAME") + self.param(
            "bias", nn.initializers.zeros, (self.features,)
        )


class _TrunkCNN(nn.Module):
    """Convolution trunk of mGAN-AI's discriminator (Song 2020, Tables I and II) with a
    classification head."""

    widths: tuple[int, ...]
    strides: tuple[int, ...]
    classes: int

    def setup(self) -> None:
        self.trunk = [
            _PaddedConvolution(f, s) for f, s in zip(self.widths, self.strides, strict=True)
        ]
        self.head = nn.Dense(self.classes, kernel_init=nn.initializers.glorot_uniform())

    def features(self, x: Array) -> Array:
        for layer in self.trunk:
            x = nn.leaky_relu(layer(x), 0.2)
        return x

    def __call__(self, x: Array) -> Array:
        return self.head(self.features(x).reshape(x.shape[0], -1))


@checked
@functools.cache
def linear(features: Count) -> Model:
    """Linear regression: `[batch, features] -> [batch, 1]`, squared error without 1/2 (Driouich
    2022)."""
    return mlp(features, (), 1, task="regression")


@checked
@functools.cache
def logistic(features: Count) -> Model:
    """Binary logistic regression: `[batch, features] -> [batch, 1]` logit, labels 0 or 1."""
    return mlp(features, (), 1)


@checked
@functools.cache
def mlp(
    features: Count,
    hidden: Shape,
    outputs: Count,
    *,
    task: Literal["classification", "regression"] = "classification",
    batch_norm: bool = False,
    activation: Activation = "relu",
    dropout: Share = 0.0,
) -> Model:
    """A multi-layer perceptron: `[batch, features] -> [batch, outputs]`.

    Args:
      features: inputs per record.
      hidden: widths of the hidden layers, a tuple; Lyu 2021 and Driouich 2023 use `(128,)` and
        `(256, 256, 256)`.
      outputs: classes; 1 for one logit of the second of two, or for regression.
      task: "classification" (softmax cross-entropy; sigmoid cross-entropy of one logit) or
        "regression" (squared error).
      batch_norm: normalise before each activation by the statistics of the batch, which never leave
        the client; scale and offset are parameters and are shared (Driouich 2023).
      activation: after every hidden layer, as PyTorch has it ("gelu" is exact and "gelu_tanh" its
        approximation, "leaky_relu" has slope 0.01).
      dropout: share of each hidden layer's numbers that training sets to 0.

    Raises:
      ValueError: if there is dropout beside batch normalisation.
    """
    widths = *hidden, outputs
    if dropout and batch_norm:
        raise ValueError(f"{dropout=} does not go with batch_norm=True: leave one of them out")
    module: nn.Module = _MLP(widths, batch_norm, activation)
    if dropout and hidden:
        module = _DropoutMLP(widths, activation, dropout)
    if task == "regression":
        return from_flax(module, (features,), squared_error)
    if outputs == 1:
        return from_flax(module, (features,), binary_cross_entropy, 2)
    return from_flax(module, (features,), cross_entropy, outputs)


@checked
@functools.cache
def lenet(dataset: Literal["mnist", "cifar10"]) -> Model:
    """PROLIN's convolutional networks (Kerkouche 2023): 21,840 parameters for `[batch, 28, 28, 1]`
    with dropout, 62,006 for `[batch, 32, 32, 3]` without."""
    if dataset == "mnist":
        return from_flax(_LeNetMNIST(), (28, 28, 1), cross_entropy, 10)
    if dataset == "cifar10":
        return from_flax(_LeNetCIFAR(), (32, 32, 3), cross_entropy, 10)
    raise ValueError(f"dataset={dataset!r} has no LeNet; choose 'mnist' or 'cifar10'")


@checked
@functools.cache
def trunk_cnn(
    record_shape: tuple[int, int, int],
    classes: Count,
    *,
    widths: tuple[int, ...] = (32, 64, 128, 256),
    strides: tuple[int, ...] = (2, 1, 2, 1),
) -> Model:
    """The shared classifier of Song 2020: 3x3 convolutions with LeakyReLU 0.2, and a dense layer.

    Args:
      record_shape: height, width and channels of an image.
      classes: number of classes.
      widths: channels after each convolution; Table I, 12,544 features of a 28x28 image in all.
      strides: of each convolution; Table II, for 64x64 faces, has (2, 2, 2, 1).
    """
    module = _TrunkCNN(widths, strides, classes)

    def features(params: Any, x: Array) -> Array:
        return jnp.asarray(module.apply({"params": params}, x, method="features"))

    model = from_flax(module, record_shape, cross_entropy, classes)
    return dataclasses.replace(model, trunk=Trunk(features, widths[-1], "head"))
