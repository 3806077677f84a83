"""The networks of files.py: each as a user would export it, from a definition that conf/network does not hold.

The list was committed before the first timing and is not chosen by what comes out: vision transformers,
convolutional networks with whole and odd widths, detectors, segmentation, diffusion and 1-D networks, recurrent layers,
encoders and decoders of language models. Widths and depths are cut so that a call takes 1 to 100 ms on one core; the
operators, their order and the sides of the images are those of the published networks. Weights are random and
calibrated (`tencost.networks.calibration`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
import transformers
from torch import nn

from tencost.networks.calibration import calibrate
from tencost.networks.image_networks import DenseNet, DenseNetConfig

Tensors = tuple[torch.Tensor, ...]
SAMPLES = 4
"""Of the inputs that weights are calibrated with."""


@dataclass(frozen=True)
class FileNetwork:
    """How a file's network is made.

    Attributes:
        make: returns the module, in evaluation mode, of random weights.
        inputs: name -> shape behind the batch; `input_ids` are token numbers, all others are normal.
        output: the name of what a network of transformers returns and the file keeps; "" for a module that returns a
            tensor, or a tuple of them.
    """

    make: Callable[[], nn.Module]
    inputs: dict[str, tuple[int, ...]]
    output: str = ""

    def tensors(self, batch: int, seed: int) -> Tensors:
        """Return inputs of a batch, by position."""
        generator = torch.Generator().manual_seed(seed)
        return tuple(
            torch.randint(5, 1000, (batch, *shape), generator=generator)
            if name == "input_ids"
            else torch.randn((batch, *shape), generator=generator)
            for name, shape in self.inputs.items()
        )

    def module(self) -> nn.Module:
        """Return the network with its inputs by position and a tensor, or a tuple of tensors, as its output."""
        torch.manual_seed(0)
        network = self.make().eval()
        names, output = tuple(self.inputs), self.output

        class Positional(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.network = network

            def forward(self, *tensors: torch.Tensor) -> Any:
                if not output:
                    return self.network(*tensors)
                named = dict(zip(names, tensors, strict=True))
                return self.network(**named)[output]

        module = Positional().eval()
        samples = self.tensors(SAMPLES, seed=1)
        calibrate(_ByName(module), {str(n): tensor for n, tensor in enumerate(samples)}, seed=0)
        return module


class _ByName(nn.Module):
    """A module whose positional inputs are named by their number, as calibration hands them over."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, **tensors: torch.Tensor) -> Any:
        return self.module(*tensors.values())


def pretrained(
    architecture: str, inputs: dict[str, tuple[int, ...]], model: str = "", **settings: Any
) -> FileNetwork:
    """Return a network of the package transformers that has no weights from outside.

    Args:
        architecture: prefix of its classes, such as "Roberta".
        inputs: see :class:`FileNetwork`.
        model: the class, as a name below transformers; <architecture>Model by default.
        settings: of its configuration; `output` is the name of the output that is kept.
    """
    output = settings.pop("output", "last_hidden_state")

    def make() -> nn.Module:
        config = getattr(transformers, f"{architecture}Config")(
            **settings, attn_implementation="eager"
        )
        made: nn.Module = attrgetter(model or f"{architecture}Model")(transformers)(config)
        return made

    return FileNetwork(make, inputs, output)


class ConvNorm(nn.Sequential):
    """A convolution, its batch norm and an activation, in one or two dimensions."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, *, dims: int = 2,
        groups: int = 1, activation: type[nn.Module] = nn.ReLU,
    ) -> None:  # fmt: skip
        conv, norm = (nn.Conv2d, nn.BatchNorm2d) if dims == 2 else (nn.Conv1d, nn.BatchNorm1d)
        padding = kernel // 2
        super().__init__(
            conv(inputs, outputs, kernel, stride, padding, groups=groups, bias=False),
            norm(outputs),
            activation(),
        )


class WaveNetwork(nn.Module):
    """A classifier of raw sound after M5 (Dai et al., 2017): strided 1-D convolutions, rows of odd lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(1, 64, 79, 20), nn.BatchNorm1d(64), nn.ReLU(),
            ConvNorm(64, 64, 3, dims=1), ConvNorm(64, 128, 3, dims=1), ConvNorm(128, 128, 3, dims=1),
            nn.MaxPool1d(4), ConvNorm(128, 256, 3, dims=1), ConvNorm(256, 256, 3, dims=1),
        )  # fmt: skip
        self.head = nn.Linear(256, 35)

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.layers(wave).mean(-1))
        return scores


class TemporalNetwork(nn.Module):
    """Dilated 1-D convolutions with residuals (Bai et al., 2018)."""

    def __init__(self, width: int = 96, depth: int = 6) -> None:
        super().__init__()
        self.stem = nn.Conv1d(40, width, 1)
        self.blocks = nn.ModuleList(
            nn.Conv1d(width, width, 3, padding=2**n, dilation=2**n) for n in range(depth)
        )
        self.head = nn.Conv1d(width, 48, 1)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        out = self.stem(frames)
        for block in self.blocks:
            out = out + torch.relu(block(out))
        labels: torch.Tensor = self.head(out)
        return labels


class Tagger(nn.Module):
    """Two bidirectional recurrent layers over a sequence, and a label a step."""

    def __init__(self, layer: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.layers = layer(96, 128, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(256, 32)

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        labels: torch.Tensor = self.head(self.layers(steps)[0])
        return labels


class UNetBlock(nn.Module):
    """Two convolutions with group norm and SiLU, and a residual (Ho et al., 2020)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(8, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1)
        )
        self.second = nn.Sequential(
            nn.GroupNorm(8, outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, padding=1)
        )
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        self.time = nn.Linear(128, outputs)

    def forward(self, image: torch.Tensor, moment: torch.Tensor) -> torch.Tensor:
        hidden = self.first(image) + self.time(moment)[:, :, None, None]
        out: torch.Tensor = self.shortcut(image) + self.second(hidden)
        return out


class DiffusionUNet(nn.Module):
    """A step of a denoising diffusion model on 32 x 32 latents, attention in the middle (Ho et al., 2020)."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.moment = nn.Sequential(nn.Linear(32, 128), nn.SiLU(), nn.Linear(128, 128))
        self.stem = nn.Conv2d(4, width, 3, padding=1)
        self.down = nn.ModuleList([UNetBlock(width, width), UNetBlock(width, 2 * width)])
        self.shrink = nn.ModuleList(
            [
                nn.Conv2d(width, width, 3, 2, padding=1),
                nn.Conv2d(2 * width, 2 * width, 3, 2, padding=1),
            ]
        )
        self.middle = UNetBlock(2 * width, 2 * width)
        self.attention = nn.MultiheadAttention(2 * width, 4, batch_first=True)
        self.up = nn.ModuleList([UNetBlock(4 * width, width), UNetBlock(2 * width, width)])
        self.grow = nn.ModuleList(
            [
                nn.ConvTranspose2d(2 * width, 2 * width, 4, 2, padding=1),
                nn.ConvTranspose2d(width, width, 4, 2, padding=1),
            ]
        )
        self.head = nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, latent: torch.Tensor, moment: torch.Tensor) -> torch.Tensor:
        moment = self.moment(moment)
        out, skipped = self.stem(latent), []
        for block, shrink in zip(self.down, self.shrink, strict=True):
            out = block(out, moment)
            skipped.append(out)
            out = shrink(out)
        out = self.middle(out, moment)
        tokens = out.flatten(2).transpose(1, 2)
        tokens = tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]
        out = tokens.transpose(1, 2).reshape(out.shape)
        for block, grow in zip(self.up, self.grow, strict=True):
            out = block(torch.cat([grow(out), skipped.pop()], 1), moment)
        denoised: torch.Tensor = self.head(out)
        return denoised


class SegmentationUNet(nn.Module):
    """U-Net of convolutions with batch norm and bilinear upsampling (Ronneberger et al., 2015)."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width, 8 * width]

        def pair(inputs: int, outputs: int) -> nn.Module:
            return nn.Sequential(ConvNorm(inputs, outputs, 3), ConvNorm(outputs, outputs, 3))

        self.down = nn.ModuleList(
            pair(i, o) for i, o in zip([3, *widths[:-1]], widths, strict=True)
        )
        self.up = nn.ModuleList(
            pair(o + i, i) for i, o in zip(widths[-2::-1], widths[:0:-1], strict=True)
        )
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        skipped: list[torch.Tensor] = []
        for number, block in enumerate(self.down):
            image = block(nn.functional.max_pool2d(image, 2) if number else image)
            skipped.append(image)
        image = skipped.pop()
        for block in self.up:
            larger = nn.functional.interpolate(image, scale_factor=2.0, mode="bilinear")
            image = block(torch.cat([larger, skipped.pop()], 1))
        mask: torch.Tensor = self.head(image)
        return mask


class Split(nn.Module):
    """YOLO's C2f: half of the channels goes through bottlenecks, and all that is on the way is joined."""

    def __init__(self, inputs: int, outputs: int, depth: int, *, residual: bool) -> None:
        super().__init__()
        half = outputs // 2
        self.half, self.residual = half, residual
        self.first = ConvNorm(inputs, outputs, 1, activation=nn.SiLU)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                ConvNorm(half, half, 3, activation=nn.SiLU),
                ConvNorm(half, half, 3, activation=nn.SiLU),
            )
            for _ in range(depth)
        )
        self.last = ConvNorm((2 + depth) * half, outputs, 1, activation=nn.SiLU)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        parts = list(self.first(image).split(self.half, 1))
        for block in self.blocks:
            parts.append(parts[-1] + block(parts[-1]) if self.residual else block(parts[-1]))
        joined: torch.Tensor = self.last(torch.cat(parts, 1))
        return joined


class OneStageDetector(nn.Module):
    """A detector after YOLOv8 nano: C2f blocks, pyramid pooling, three scales, boxes and classes apart."""

    def __init__(self, width: int = 16, classes: int = 80) -> None:
        super().__init__()

        def conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 2) -> nn.Module:
            return ConvNorm(inputs, outputs, kernel, stride, activation=nn.SiLU)

        w = width
        self.stages = nn.ModuleList(
            [
                nn.Sequential(
                    conv(3, w), conv(w, 2 * w), Split(2 * w, 2 * w, 1, residual=True),
                    conv(2 * w, 4 * w), Split(4 * w, 4 * w, 2, residual=True),
                ),
                nn.Sequential(conv(4 * w, 8 * w), Split(8 * w, 8 * w, 2, residual=True)),
                nn.Sequential(conv(8 * w, 16 * w), Split(16 * w, 16 * w, 1, residual=True)),
            ]
        )  # fmt: skip
        self.pool_in, self.pool_out = conv(16 * w, 8 * w, 1, 1), conv(32 * w, 16 * w, 1, 1)
        self.middle = Split(24 * w, 8 * w, 1, residual=False)
        self.fine = Split(12 * w, 4 * w, 1, residual=False)
        widths = (4 * w, 8 * w, 16 * w)
        self.boxes = nn.ModuleList(
            nn.Sequential(conv(i, 64, 3, 1), conv(64, 64, 3, 1), nn.Conv2d(64, 64, 1))
            for i in widths
        )
        self.classes = nn.ModuleList(
            nn.Sequential(conv(i, 80, 3, 1), conv(80, 80, 3, 1), nn.Conv2d(80, classes, 1))
            for i in widths
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        scales: list[torch.Tensor] = []
        for stage in self.stages:
            image = stage(image)
            scales.append(image)
        pooled = [self.pool_in(scales[2])]
        for _ in range(3):
            pooled.append(nn.functional.max_pool2d(pooled[-1], 5, 1, 2))
        coarse = self.pool_out(torch.cat(pooled, 1))
        larger = nn.functional.interpolate(coarse, scale_factor=2.0, mode="nearest")
        middle = self.middle(torch.cat([larger, scales[1]], 1))
        larger = nn.functional.interpolate(middle, scale_factor=2.0, mode="nearest")
        fine = self.fine(torch.cat([larger, scales[0]], 1))
        found = [
            torch.cat([box(scale), kind(scale).sigmoid()], 1).flatten(2)
            for scale, box, kind in zip(
                (fine, middle, coarse), self.boxes, self.classes, strict=True
            )
        ]
        return torch.cat(found, 2)


class DetectionDecoder(nn.Module):
    """DETR's decoder: learnt queries attend to each other and to what an encoder made of an image."""

    def __init__(self, width: int = 256, queries: int = 100, depth: int = 3) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(1, queries, width))
        layer = nn.TransformerDecoderLayer(width, 8, 1024, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, depth)
        self.classes, self.boxes = nn.Linear(width, 92), nn.Linear(width, 4)

    def forward(self, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.decoder(self.queries.expand(memory.shape[0], -1, -1), memory)
        return self.classes(out), self.boxes(out).sigmoid()


class DecoderStep(nn.Module):
    """One step of a decoder with grouped queries and rotary positions; the cache of keys and values is an input."""

    def __init__(self, width: int = 512, heads: int = 8, groups: int = 2, past: int = 127) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, groups * self.size, bias=False)
        self.value = nn.Linear(width, groups * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)
        angles = past / 10000 ** (torch.arange(0, self.size, 2) / self.size)
        self.register_buffer("cosine", torch.cat([angles, angles]).cos())
        self.register_buffer("sine", torch.cat([angles, angles]).sin())

    def _turned(self, heads: torch.Tensor) -> torch.Tensor:
        first, second = heads.chunk(2, -1)
        return heads * self.cosine + torch.cat([-second, first], -1) * self.sine

    def forward(
        self, token: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        batch = token.shape[0]
        normed = self.norms[0](token)
        query = self._turned(self.query(normed).view(batch, 1, self.heads, self.size))
        key = self._turned(self.key(normed).view(batch, 1, self.groups, self.size))
        value = self.value(normed).view(batch, 1, self.groups, self.size)
        keys, values = (
            torch.cat([past, new.transpose(1, 2)], 2).repeat_interleave(
                self.heads // self.groups, 1
            )
            for past, new in ((keys, key), (values, value))
        )
        weights = query.transpose(1, 2) @ keys.transpose(2, 3) / math.sqrt(self.size)
        mixed = (weights.softmax(-1) @ values).transpose(1, 2).reshape(batch, 1, -1)
        token = token + self.out(mixed)
        normed = self.norms[1](token)
        out: torch.Tensor = token + self.down(
            nn.functional.silu(self.gate(normed)) * self.up(normed)
        )
        return out


IMAGE = {"pixel_values": (3, 224, 224)}
TOKENS = {"input_ids": (128,)}
SMALL = {"hidden_size": 384, "num_hidden_layers": 4, "num_attention_heads": 6}
FILES: dict[str, FileNetwork] = {
    # vision transformers and hybrids
    "mobilevit": pretrained("MobileViT", {"pixel_values": (3, 256, 256)}, image_size=256),
    "mobilevitv2": pretrained("MobileViTV2", {"pixel_values": (3, 256, 256)}, image_size=256),
    "levit": pretrained("Levit", IMAGE),
    "dinov2": pretrained("Dinov2", IMAGE, image_size=224, **SMALL),
    "siglip": pretrained("SiglipVision", IMAGE, image_size=224, intermediate_size=1536, **SMALL),
    "swinv2": pretrained(
        "Swinv2",
        {"pixel_values": (3, 256, 256)},
        image_size=256,
        embed_dim=64,
        depths=[1, 1, 2, 1],
        num_heads=[2, 4, 8, 16],
    ),
    "pvtv2": pretrained("PvtV2", IMAGE, depths=[1, 1, 1, 1]),
    # convolutional networks
    "resnet_odd": pretrained(
        "ResNet",
        IMAGE,
        embedding_size=40,
        hidden_sizes=[104, 216, 440, 872],
        depths=[1, 1, 1, 1],
        layer_type="basic",
    ),
    "regnet": pretrained(
        "RegNet", IMAGE, hidden_sizes=[48, 120, 336, 888], depths=[1, 2, 4, 1], groups_width=24
    ),
    "convnextv2": pretrained("ConvNextV2", IMAGE, depths=[1, 1, 3, 1]),
    "mobilenet_v1": pretrained("MobileNetV1", IMAGE),
    "efficientnet_b1": pretrained(
        "EfficientNet",
        {"pixel_values": (3, 240, 240)},
        image_size=240,
        width_coefficient=1.0,
        depth_coefficient=1.1,
        hidden_dim=1280,
    ),
    "densenet": FileNetwork(
        lambda: DenseNet(DenseNetConfig(depths=[3, 6, 12, 8])),
        {"pixel_values": (3, 224, 224)},
        "logits",
    ),
    # detectors, segmentation, depth, superresolution, diffusion
    "yolov8_like": FileNetwork(OneStageDetector, {"image": (3, 320, 320)}),
    "detr_decoder": FileNetwork(DetectionDecoder, {"memory": (400, 256)}),
    "yolos": pretrained(
        "Yolos",
        {"pixel_values": (3, 224, 224)},
        image_size=[224, 224],
        intermediate_size=768,
        hidden_size=192,
        num_hidden_layers=6,
        num_attention_heads=3,
    ),
    "segformer": pretrained("Segformer", IMAGE, depths=[1, 1, 1, 1]),
    "unet": FileNetwork(SegmentationUNet, {"image": (3, 192, 192)}),
    "swin2sr": pretrained(
        "Swin2SR",
        {"pixel_values": (3, 64, 64)},
        embed_dim=60,
        depths=[2, 2],
        num_heads=[6, 6],
        window_size=8,
    ),
    "diffusion_unet": FileNetwork(DiffusionUNet, {"latent": (4, 32, 32), "moment": (32,)}),
    # one dimension and time
    "wave1d": FileNetwork(WaveNetwork, {"wave": (1, 16000)}),
    "temporal": FileNetwork(TemporalNetwork, {"frames": (40, 500)}),
    "wav2vec2": pretrained(
        "Wav2Vec2",
        {"input_values": (8000,)},
        conv_dim=[128] * 7,
        intermediate_size=1024,
        hidden_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
    ),
    "whisper_encoder": pretrained(
        "Whisper",
        {"input_features": (80, 1000)},
        model="models.whisper.modeling_whisper.WhisperEncoder",
        d_model=256,
        encoder_layers=3,
        encoder_attention_heads=4,
        encoder_ffn_dim=1024,
        max_source_positions=500,
    ),
    "bilstm": FileNetwork(lambda: Tagger(nn.LSTM), {"steps": (64, 96)}),
    "bigru": FileNetwork(lambda: Tagger(nn.GRU), {"steps": (64, 96)}),
    # language
    "roberta": pretrained("Roberta", TOKENS, intermediate_size=1536, **SMALL),
    "modernbert": pretrained(
        "ModernBert",
        TOKENS,
        intermediate_size=576,
        vocab_size=2000,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
        cls_token_id=2,
        sep_token_id=1,
        **SMALL,
    ),
    "t5_encoder": pretrained(
        "T5", TOKENS, model="T5EncoderModel", num_layers=4, d_model=384, d_ff=1024, num_heads=6
    ),
    "llama": pretrained(
        "Llama", TOKENS, intermediate_size=1024, vocab_size=2000, num_key_value_heads=2, **SMALL
    ),
    "qwen3": pretrained(
        "Qwen3",
        TOKENS,
        intermediate_size=1024,
        vocab_size=2000,
        num_key_value_heads=2,
        head_dim=64,
        **SMALL,
    ),
    "decoder_step": FileNetwork(
        DecoderStep, {"token": (1, 512), "keys": (2, 127, 64), "values": (2, 127, 64)}
    ),
}
"""Name of a file -> its network."""
