"""The networks of the two VAEs, written as matrix products.

A convolution with stride 2 and 3 x 3 weights is a product of its weights with the patches of its input. The transposed
convolution is its transpose: a product whose results are added where patches overlap. The batch is the last axis,
``(channels, height, width, batch)``: patches are copied in long runs, products are wide, and sums over a channel are
sums over a row. So these small layers take a third of the time of ``torch.nn``'s, with the same initialization and
results (the tests compare them).
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

FEATURES = 32 * 3 * 3
HIDDEN = 128
WIDTHS = 256, 512
"""The widths of the second VAE's hidden layers, from the latents outwards."""
MOMENTUM, EPSILON = 0.1, 1e-5
"""The settings of batch normalization, torch's defaults."""


# ---- convolutions ----------------------------------------------------------------------------------------------------
#
# All map between images of side 2 h + 1 and of side h. If the larger one has side 2 h, a row and a column of zeros are
# added before it. A layer ends with biases and a rectifier, unless batch normalization follows, which has both.


def patches(image: Tensor, size: int) -> Tensor:
    """Return 3 x 3 patches with stride 2: (channels, 2 h + 1, 2 h + 1, batch) to (channels * 9, h * h * batch)."""
    channels, side, _, batch = image.shape
    row = side * batch
    strides = (side * row, row, batch, 2 * row, 2 * batch, 1)
    return image.as_strided((channels, 3, 3, size, size, batch), strides).reshape(channels * 9, -1)


def overlap(parts: Tensor, channels: int, size: int, side: int) -> Tensor:
    """Apply the transpose of :func:`patches`: every pixel is the sum of its values in the patches.

    Args:
        parts: The patches, (channels * 9, h * h * batch).
        channels: The number of channels.
        size: The number h.
        side: The side of the image: 2 h + 1, or 2 h if its first row and column are not needed.
    """
    parts = parts.view(channels, 3, 3, size, size, -1)
    if side % 2:
        return _overlap_odd(parts, channels, size)
    # Of the remaining pixels 2 i is the middle of patch i; 2 i + 1 is its end, and the beginning of patch i + 1.
    image = parts.new_empty(channels, size, 2, size, 2, parts.shape[-1])
    image.copy_(parts[:, 1:, 1:].permute(0, 3, 1, 4, 2, 5))
    image[:, :-1, 1].add_(parts[:, 0, 1:, 1:].permute(0, 2, 3, 1, 4))
    image[:, :, :, :-1, 1].add_(parts[:, 1:, 0, :, 1:].permute(0, 2, 1, 3, 4))
    image[:, :-1, 1, :-1, 1].add_(parts[:, 0, 0, 1:, 1:])
    return image.view(channels, side, side, -1)


def _overlap_odd(parts: Tensor, channels: int, size: int) -> Tensor:
    # Pixels 2 i and 2 i + 1 are the beginning and the middle of patch i; its end is pixel 2 i + 2.
    image = parts.new_zeros(channels, size + 1, 2, size + 1, 2, parts.shape[-1])
    image[:, :size, :, :size].copy_(parts[:, :2, :2].permute(0, 3, 1, 4, 2, 5))
    image[:, 1:, 0, :size].add_(parts[:, 2, :2].permute(0, 2, 3, 1, 4))
    image[:, :size, :, 1:, 0].add_(parts[:, :2, 2].permute(0, 2, 1, 3, 4))
    image[:, 1:, 0, 1:, 0].add_(parts[:, 2, 2])
    side = 2 * size + 1
    return image.view(channels, side + 1, side + 1, -1)[:, :side, :side].contiguous()


def _padded(image: Tensor) -> Tensor:
    """Return an image with an odd side, for :func:`patches`."""
    return image.contiguous() if image.shape[1] % 2 else F.pad(image, (0, 0, 1, 0, 1, 0))


def _rectified_gradient(gradient: Tensor, result: Tensor) -> Tensor:
    """Return the gradient where the result of a rectifier is positive, and 0 elsewhere."""
    kept: Tensor = torch.ops.aten.threshold_backward(gradient, result, 0)
    return kept


class _Convolution(torch.autograd.Function):
    """A convolution with weights (out, in * 9)."""

    @staticmethod
    def forward(ctx: Any, image: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        size = image.shape[1] // 2
        columns = patches(_padded(image), size)
        result = weight @ columns if bias is None else torch.addmm(bias.unsqueeze(1), weight, columns).relu_()
        ctx.save_for_backward(columns, weight, None if bias is None else result)
        ctx.shape = image.shape
        return result.view(-1, size, size, image.shape[-1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        columns, weight, result = ctx.saved_tensors
        gradient = gradients[0].reshape(len(weight), -1)
        if result is not None:
            gradient = _rectified_gradient(gradient, result)
        of_image = None
        if ctx.needs_input_grad[0]:
            channels, side = ctx.shape[:2]
            of_image = overlap(weight.t() @ gradient, channels, side // 2, side)
        return of_image, gradient @ columns.t(), None if result is None else gradient.sum(1)


class _TransposedConvolution(torch.autograd.Function):
    """A transposed convolution with weights (out * 9, in)."""

    @staticmethod
    def forward(ctx: Any, image: Tensor, weight: Tensor, side: int) -> Tensor:
        rows = image.reshape(len(image), -1)
        ctx.save_for_backward(rows, weight)
        ctx.shape = image.shape
        return overlap(weight @ rows, len(weight) // 9, image.shape[1], side)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        columns = patches(_padded(gradients[0]), ctx.shape[1])
        return (weight.t() @ columns).view(ctx.shape), columns @ rows.t(), None


class _Normalization(torch.autograd.Function):
    """Batch normalization in training mode over all but the first axis, and a rectifier: twice as fast as torch's."""

    @staticmethod
    def forward(ctx: Any, image: Tensor, weight: Tensor, bias: Tensor, state: Tensor) -> Tensor:
        rows = image.view(len(image), -1)
        mean = rows.mean(1, keepdim=True)
        variance = (rows - mean).square_().mean(1, keepdim=True)
        inverse = (variance + EPSILON).rsqrt()
        slope = inverse * weight.unsqueeze(1)
        result = (rows * slope).add_(bias.unsqueeze(1) - mean * slope).relu_()
        count = rows.shape[1]
        now = torch.stack((mean.squeeze(1), variance.squeeze(1) * (count / (count - 1))))
        state.lerp_(now.view(-1), MOMENTUM)
        ctx.save_for_backward(image, weight, result, mean.squeeze(1), inverse.squeeze(1))
        return result.view(image.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        image, weight, result, mean, inverse = ctx.saved_tensors
        gradient = _rectified_gradient(gradients[0], result.view(image.shape))
        found = torch.ops.aten.native_batch_norm_backward(
            gradient.unsqueeze(0),
            image.unsqueeze(0),
            weight,
            *(None, None, mean, inverse, True, EPSILON, [True, True, True]),
        )
        return found[0].squeeze(0), found[1], found[2], None


def convolution(image: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Apply a convolution with stride 2; a side of 2 h or 2 h + 1 becomes h."""
    result: Tensor = _Convolution.apply(image, weight, bias)  # type: ignore[no-untyped-call]
    return result


def transposed_convolution(image: Tensor, weight: Tensor, side: int) -> Tensor:
    """Apply its transpose with stride 2; a side of h becomes ``side``, which is 2 h or 2 h + 1."""
    result: Tensor = _TransposedConvolution.apply(image, weight, side)  # type: ignore[no-untyped-call]
    return result


def normalization(image: Tensor, weight: Tensor, bias: Tensor, state: Tensor, *, training: bool) -> Tensor:
    """Apply batch normalization and a rectifier; training updates ``state``, the running means and variances."""
    if training:
        result: Tensor = _Normalization.apply(image, weight, bias, state)  # type: ignore[no-untyped-call]
        return result
    mean, variance = state.view(2, -1).unbind()
    slope = weight * (variance + EPSILON).rsqrt()
    shift = bias - mean * slope
    return (image * slope.view(-1, 1, 1, 1) + shift.view(-1, 1, 1, 1)).relu()


# ---- networks --------------------------------------------------------------------------------------------------------


Parts = tuple[Tensor, ...]


class Part(NamedTuple):
    """One tensor of parameters: its shape in the products, and its initial values.

    With a bound they are uniform in (-bound, bound), as in ``torch.nn``; without one they are constant.
    """

    shape: tuple[int, ...]
    bound: float | None = None
    constant: float = 0.0


def _linear(inputs: int, outputs: int) -> list[Part]:
    bound = 1 / math.sqrt(inputs)
    return [Part((outputs, inputs), bound), Part((outputs,), bound)]


def _normalized(channels: int) -> list[Part]:
    return [Part((channels,), constant=1.0), Part((channels,), constant=0.0)]


def _transposed(inputs: int, outputs: int) -> Part:
    return Part((outputs * 9, inputs), 1 / math.sqrt(outputs * 9))  # torch uses the outputs


@dataclasses.dataclass(frozen=True)
class Network(abc.ABC):
    """An encoder from images to scores and a decoder from one-hot classes to the log-odds of pixels.

    All parameters are in one vector, so that an optimizer updates one tensor. The last ones are the encoder's last
    layer, which depends on the parameterization, so the initial values of all others do not.

    Attributes:
        latents: The number N of latent variables.
        classes: The number K of their classes.
        scores: The number of scores of each variable: K or K - 1.
    """

    latents: int
    classes: int
    scores: int

    @property
    @abc.abstractmethod
    def halves(self) -> tuple[list[Part], list[Part]]:
        """The parts of the decoder and of the encoder."""

    @abc.abstractmethod
    def start_state(self) -> Tensor:
        """Return the initial running means and variances, which training also changes."""

    @abc.abstractmethod
    def encode(self, parts: Parts, state: Tensor, images: Tensor, *, training: bool) -> Tensor:
        """Map images (784, batch) to scores (batch, N, scores)."""

    @abc.abstractmethod
    def decode(self, parts: Parts, state: Tensor, one_hot: Tensor, *, training: bool) -> Tensor:
        """Map one-hot classes (batch, N, K) to the log-odds of pixels (784, batch)."""

    @abc.abstractmethod
    def decode_classes(self, parts: Parts, state: Tensor, classes: Tensor) -> Tensor:
        """Do the same in evaluation mode for classes (batch, N)."""

    @functools.cached_property
    def parts(self) -> list[Part]:
        """The parts of both halves."""
        decoder, encoder = self.halves
        return [*decoder, *encoder]

    @functools.cached_property
    def sizes(self) -> list[int]:
        """The number of values in each part."""
        return [math.prod(part.shape) for part in self.parts]

    def start(self, stream: np.random.Generator) -> Tensor:
        """Draw the initial parameters of a run."""
        drawn = [
            np.full(size, part.constant) if part.bound is None else stream.uniform(-part.bound, part.bound, size)
            for part, size in zip(self.parts, self.sizes, strict=True)
        ]
        return torch.from_numpy(np.concatenate(drawn)).float()

    def split(self, parameters: Tensor) -> tuple[Parts, Parts]:
        """Return the parameters of the decoder and of the encoder, as views."""
        pieces = torch.split(parameters, self.sizes)
        shaped = tuple(piece.view(part.shape) for piece, part in zip(pieces, self.parts, strict=True))
        decoder = len(self.halves[0])
        return shaped[:decoder], shaped[decoder:]

    def hidden_of_classes(self, classes: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Apply a linear layer to one-hot classes (batch, N): the sum of columns of weights, (outputs, batch)."""
        places = classes + torch.arange(0, self.latents * self.classes, self.classes)
        return F.embedding_bag(places, weight.t().contiguous(), mode="sum").add_(bias).t()


class Decoder(NamedTuple):
    """The parts of the convolutional decoder."""

    first: Tensor
    first_bias: Tensor
    second: Tensor
    second_bias: Tensor
    third: Tensor
    third_slope: Tensor
    third_shift: Tensor
    fourth: Tensor
    fourth_slope: Tensor
    fourth_shift: Tensor
    last: Tensor
    last_bias: Tensor


class Encoder(NamedTuple):
    """The parts of the convolutional encoder."""

    first: Tensor
    first_bias: Tensor
    second: Tensor
    second_slope: Tensor
    second_shift: Tensor
    third: Tensor
    third_bias: Tensor
    fourth: Tensor
    fourth_bias: Tensor
    last: Tensor
    last_bias: Tensor


class Convolutional(Network):
    """The network of the main VAE: three convolutions and a hidden layer, mirrored in the decoder.

    Its state has means and variances of the decoder's first normalization, of its second, and of the encoder's.
    """

    @property
    def halves(self) -> tuple[list[Part], list[Part]]:
        """The parts of decoder and encoder."""
        decoder = [
            *_linear(self.latents * self.classes, HIDDEN),
            *_linear(HIDDEN, FEATURES),
            *(_transposed(32, 16), *_normalized(16)),
            *(_transposed(16, 8), *_normalized(8)),
            *(_transposed(8, 1), Part((1,), 1 / math.sqrt(9))),
        ]
        encoder = [
            *_linear(9, 8),
            *(_linear(8 * 9, 16)[0], *_normalized(16)),
            *_linear(16 * 9, 32),
            *_linear(FEATURES, HIDDEN),
            *_linear(HIDDEN, self.latents * self.scores),
        ]
        return decoder, encoder

    def start_state(self) -> Tensor:
        """Return means of 0 and variances of 1."""
        return torch.cat([torch.full((channels,), value) for channels in (16, 8, 16) for value in (0.0, 1.0)])

    def encode(self, parts: Parts, state: Tensor, images: Tensor, *, training: bool) -> Tensor:
        """Map images to scores."""
        part = Encoder(*parts)
        hidden = convolution(images.view(1, 28, 28, -1), part.first, part.first_bias)
        hidden = convolution(hidden, part.second)
        hidden = normalization(hidden, part.second_slope, part.second_shift, state[48:], training=training)
        hidden = convolution(hidden, part.third, part.third_bias).view(FEATURES, -1)
        hidden = torch.addmm(part.fourth_bias.unsqueeze(1), part.fourth, hidden).relu_()
        return torch.addmm(part.last_bias, hidden.t(), part.last.t()).view(-1, self.latents, self.scores)

    def decode(self, parts: Parts, state: Tensor, one_hot: Tensor, *, training: bool) -> Tensor:
        """Map one-hot classes to log-odds."""
        part = Decoder(*parts)
        hidden = torch.addmm(part.first_bias.unsqueeze(1), part.first, one_hot.flatten(1).t())
        return self._decode_hidden(part, state, hidden, training)

    def decode_classes(self, parts: Parts, state: Tensor, classes: Tensor) -> Tensor:
        """Do the same for classes."""
        part = Decoder(*parts)
        return self._decode_hidden(part, state, self.hidden_of_classes(classes, part.first, part.first_bias), False)

    def _decode_hidden(self, part: Decoder, state: Tensor, hidden: Tensor, training: bool) -> Tensor:
        hidden = torch.addmm(part.second_bias.unsqueeze(1), part.second, hidden.relu_()).relu_().view(32, 3, 3, -1)
        hidden = transposed_convolution(hidden, part.third, 7)
        hidden = normalization(hidden, part.third_slope, part.third_shift, state[:32], training=training)
        hidden = transposed_convolution(hidden, part.fourth, 14)
        hidden = normalization(hidden, part.fourth_slope, part.fourth_shift, state[32:48], training=training)
        return transposed_convolution(hidden, part.last, 28).view(28 * 28, -1) + part.last_bias


class Perceptrons(Network):
    """The network of the second VAE: two hidden layers, mirrored in the decoder. It has no state."""

    @property
    def halves(self) -> tuple[list[Part], list[Part]]:
        """The parts of decoder and encoder."""
        inner, outer = WIDTHS
        decoder = [*_linear(self.latents * self.classes, inner), *_linear(inner, outer), *_linear(outer, 28 * 28)]
        encoder = [*_linear(28 * 28, outer), *_linear(outer, inner), *_linear(inner, self.latents * self.scores)]
        return decoder, encoder

    def start_state(self) -> Tensor:
        """Return an empty tensor."""
        return torch.empty(0)

    def encode(self, parts: Parts, state: Tensor, images: Tensor, *, training: bool) -> Tensor:
        """Map images to scores."""
        hidden = torch.addmm(parts[1].unsqueeze(1), parts[0], images).relu()
        return self._two_layers(parts[2:], hidden).t().reshape(-1, self.latents, self.scores)

    def decode(self, parts: Parts, state: Tensor, one_hot: Tensor, *, training: bool) -> Tensor:
        """Map one-hot classes to log-odds."""
        hidden = torch.addmm(parts[1].unsqueeze(1), parts[0], one_hot.flatten(1).t()).relu()
        return self._two_layers(parts[2:], hidden)

    def decode_classes(self, parts: Parts, state: Tensor, classes: Tensor) -> Tensor:
        """Do the same for classes."""
        return self._two_layers(parts[2:], self.hidden_of_classes(classes, parts[0], parts[1]).relu())

    def _two_layers(self, parts: Parts, hidden: Tensor) -> Tensor:
        hidden = torch.addmm(parts[1].unsqueeze(1), parts[0], hidden).relu()
        return torch.addmm(parts[3].unsqueeze(1), parts[2], hidden)
