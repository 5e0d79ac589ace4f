"""The network under training: a backbone with LoRA or all of its weights, and a head.

The small operations of a decoder are written with their gradients: fewer passes over memory, and no more kept than the gradient needs. Each
is the same function as its plain form in PyTorch; the tests hold values and gradients to it. Rows are tokens. On a CPU the operations
between matrix products go over blocks of rows that stay in its cache. Of the last layer only the keys and values are computed for
every token; queries, the feed-forward part and the last norm, for those that are read.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from stepmark.errors import CheckpointError, UsageError
from stepmark.models import attention
from stepmark.models.backbone import load_backbone, load_tokenizer, token_limit
from stepmark.models.checkpoint import Tensors
from stepmark.models.encoding import Encoder
from stepmark.models.generative import CriticSpec
from stepmark.models.heads import output_rows
from stepmark.models.packed_tree import Ints, PackedTree
from stepmark.models.spec import ChatLayout, Layout, ScoringSpec, TextLayout, TokenHead
from stepmark.models.token_head import token_features
from stepmark.training.logprobs import token_logprobs
from stepmark.training.packing import TrainingItem, packed, step_tokens
from stepmark.training.settings import LayoutName, Weights

_BLOCK = 2**18
"""Elements of a block: about a megabyte in float32."""


def _blocks(like: Tensor) -> Iterator[slice]:
    rows = len(like) if like.device.type != "cpu" else max(1, _BLOCK // max(1, like[0].numel()))
    for start in range(0, len(like), max(1, rows)):
        yield slice(start, start + rows)


def add_norm(x: Tensor, branch: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The residual stream [rows, width] after a branch (None adds nothing), and its root mean square norm (Zhang and Sennrich 2019) times `weight`."""
    results: tuple[Tensor, Tensor] = _AddNorm.apply(x, branch, weight, eps)  # type: ignore[no-untyped-call]
    return results


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, branch: Tensor | None, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(x.dtype, torch.float32)
        total = x.view_as(x) if branch is None else torch.empty_like(x)
        normed = torch.empty_like(x)
        inverse = torch.empty(len(x), 1, dtype=wide, device=x.device)
        for rows in _blocks(x):
            if branch is not None:
                torch.add(x[rows], branch[rows], out=total[rows])
            h = total[rows].to(wide)
            r = torch.linalg.vector_norm(h, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps)
            r = torch.rsqrt(r, out=inverse[rows])
            # Rounded before the weight, as transformers does.
            torch.mul((h * r).to(x.dtype), weight, out=normed[rows])
        ctx.save_for_backward(total, weight, inverse)
        ctx.branched = branch is not None
        return total, normed

    @staticmethod
    def backward(
        ctx: Any, d_total: Tensor, d_normed: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        total, weight, inverse = ctx.saved_tensors
        wide, w = inverse.dtype, weight.to(inverse.dtype)
        d_weight = torch.zeros_like(w) if ctx.needs_input_grad[2] else None
        d_x = torch.empty_like(total)
        for rows in _blocks(total):
            g = d_normed[rows].to(wide)
            unit = total[rows].to(wide) * inverse[rows]
            if d_weight is not None:
                d_weight += (g * unit).sum(0)
            g = g * w
            mean = torch.linalg.vecdot(g, unit).unsqueeze(-1).div_(total.shape[-1])
            g.addcmul_(unit, mean, value=-1).mul_(inverse[rows])
            torch.add(g, d_total[rows], out=g)
            d_x[rows] = g
        return (
            d_x if ctx.needs_input_grad[0] else None,
            d_x if ctx.branched else None,
            None if d_weight is None else d_weight.to(weight.dtype),
            None,
        )


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding (Su et al. 2021), the halves of a head as pairs: [rows, heads * dim] to [heads, rows, dim], by cosines [rows, dim / 2]."""
    result: Tensor = _Rotary.apply(x, cos, sin)  # type: ignore[no-untyped-call]
    return result


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        half = cos.shape[-1]
        heads = x.view(len(x), -1, 2 * half).transpose(0, 1)
        out = torch.empty(heads.shape, dtype=x.dtype, device=x.device)
        _turn(heads, cos, sin, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        heads, rows, dim = grad.shape
        out = torch.empty(rows, heads * dim, dtype=grad.dtype, device=grad.device)
        _turn(grad, cos, -sin, out.view(rows, heads, dim).transpose(0, 1))
        return out, None, None


def _turn(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    """Turn each pair by its angle; [heads, rows, dim]."""
    half = cos.shape[-1]
    a, b = x[..., :half], x[..., half:]
    out[..., :half] = (a * cos).addcmul_(b, sin, value=-1)
    out[..., half:] = (b * cos).addcmul_(a, sin)


@dataclass(frozen=True, kw_only=True, slots=True)
class Weight:
    """A linear layer: its own weights, or frozen ones and a low-rank difference (LoRA, Hu et al. 2021)."""

    weight: Tensor
    """[out, in]."""
    bias: Tensor | None = None
    """[out]."""
    down: Tensor | None = None
    """A: [rank, in]; with it `weight` and `bias` are not trained."""
    up: Tensor | None = None
    """B: [out, rank]."""
    scale: float = 0.0


def linears(x: Tensor, layers: Sequence[Weight]) -> tuple[Tensor, ...]:
    """Linear layers of one input [rows, in]: [rows, out] of each.

    A low-rank difference is a product of its own beside that of the weights, as peft has it: added to weights in bfloat16, differences as
    small as those at the beginning of a training would be rounded away. Gradients go to the factors alone.
    """
    given = [t for w in layers for t in (w.weight, w.bias, w.down, w.up)]
    results: tuple[Tensor, ...] = _Linears.apply(x, tuple(w.scale for w in layers), *given)  # type: ignore[no-untyped-call]
    return results


class _Linears(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scales: tuple[float, ...], *given: Tensor | None) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, *given)
        ctx.scales = scales
        results = []
        for at, scale in enumerate(scales):
            weight, bias, down, up = given[4 * at : 4 * at + 4]
            assert weight is not None
            y = F.linear(x, weight, bias)
            if down is not None and up is not None:
                y.addmm_(x @ down.t(), up.t(), alpha=scale)
            results.append(y)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *given = ctx.saved_tensors
        d_x: Tensor | None = None
        results: list[Tensor | None] = []
        for at, (scale, g) in enumerate(zip(ctx.scales, grads, strict=True)):
            weight, _, down, up = given[4 * at : 4 * at + 4]
            needs = ctx.needs_input_grad[2 + 4 * at : 6 + 4 * at]
            if ctx.needs_input_grad[0]:
                d_x = g @ weight if d_x is None else d_x.addmm_(g, weight)
            results += [g.t() @ x if needs[0] else None, g.sum(0) if needs[1] else None]
            if down is None or up is None:
                results += [None, None]
                continue
            inner = (g @ up).mul_(scale)
            if d_x is not None:
                d_x.addmm_(inner, down)
            results += [
                inner.t() @ x if needs[2] else None,
                g.t() @ (x @ down.t()).mul_(scale) if needs[3] else None,
            ]
        return d_x, None, *results


_KNOWN = ("LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model")
"""Backbones of this shape: norm, attention, norm, gated feed-forward part, with nothing scaled in between."""


def fits(backbone: Any) -> bool:
    """Whether `hidden_rows` computes this backbone; others run as transformers has them. So do those whose weights are shared out
    (`fully_shard` gives them another class): a layer's are put together only where it is called.
    """
    return type(backbone).__name__ in _KNOWN and backbone.config.hidden_act == "silu"


def hidden_rows(backbone: Any, trees: list[PackedTree], device: str, rows: Ints | None) -> Tensor:
    """Hidden states after the last norm of the tokens `rows` (ascending, distinct; None: all) of trees laid one after the other: [rows, hidden]."""
    ids = attention.moved(np.concatenate([tree.ids for tree in trees]), device)
    depths = attention.moved(np.concatenate([tree.depths for tree in trees]), device)
    x: Tensor = backbone.embed_tokens(ids)
    cos, sin = (t[0, :, : t.shape[-1] // 2] for t in backbone.rotary_emb(x[None], depths[None]))
    layers = list(backbone.layers)
    plan = attention.Plan.of_trees(trees, device)
    branch: Tensor | None = None
    # Asked of a layer, because transformers means to rename the question on the whole.
    again = layers[0].gradient_checkpointing and torch.is_grad_enabled()
    for layer in layers if rows is None else layers[:-1]:
        arguments = (layer, x, branch, cos, sin, plan, None)
        x, branch = checkpoint(_layer, *arguments, use_reentrant=False) if again else _layer(*arguments)
    if rows is not None:
        # Few rows: computing them again would save nothing.
        last, picked = attention.Plan.of_trees(trees, device, rows), attention.moved(rows, device)
        x, branch = _layer(layers[-1], x, branch, cos, sin, last, picked)
    return add_norm(x, branch, backbone.norm.weight, backbone.norm.variance_epsilon)[1]


def _layer(
    layer: Any,
    x: Tensor,
    branch: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    plan: attention.Plan,
    rows: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The residual stream [tokens or rows, hidden] before the feed-forward part, and what that adds to it."""
    own, mlp = layer.self_attn, layer.mlp
    x, y = add_norm(x, branch, layer.input_layernorm.weight, layer.input_layernorm.variance_epsilon)
    if rows is None:
        query, key, value = linears(y, [_weight(own.q_proj), _weight(own.k_proj), _weight(own.v_proj)])
        cos_query, sin_query = cos, sin
    else:
        key, value = linears(y, [_weight(own.k_proj), _weight(own.v_proj)])
        x, y = x.index_select(0, rows), y.index_select(0, rows)
        (query,) = linears(y, [_weight(own.q_proj)])
        cos_query, sin_query = cos[rows], sin[rows]
    if type(own).__name__ == "Qwen3Attention":
        query, key = _head_norm(query, own.q_norm), _head_norm(key, own.k_norm)
    seen = attention.attend(
        rotary(query, cos_query, sin_query)[None],
        rotary(key, cos, sin)[None],
        value.view(len(value), -1, own.head_dim).transpose(0, 1).contiguous()[None],
        plan,
        own.scaling,
    )
    (branch,) = linears(seen.view(len(query), -1), [_weight(own.o_proj)])
    norm = layer.post_attention_layernorm
    x, y = add_norm(x, branch, norm.weight, norm.variance_epsilon)
    gate, up = linears(y, [_weight(mlp.gate_proj), _weight(mlp.up_proj)])
    (branch,) = linears(F.silu(gate) * up, [_weight(mlp.down_proj)])
    return x, branch


def _head_norm(x: Tensor, norm: Any) -> Tensor:
    heads = x.reshape(-1, norm.weight.shape[0])
    return add_norm(heads, None, norm.weight, norm.variance_epsilon)[1].view(x.shape)


def _weight(module: Any) -> Weight:
    """A linear layer, or peft's over one; its dropout is 0 here (`net.py` sets none)."""
    if isinstance(module, torch.nn.Linear):
        return Weight(weight=module.weight, bias=module.bias)
    base = module.base_layer
    if module.disable_adapters:
        return Weight(weight=base.weight, bias=base.bias)
    (name,) = module.active_adapters
    return Weight(
        weight=base.weight,
        bias=base.bias,
        down=module.lora_A[name].weight,
        up=module.lora_B[name].weight,
        scale=float(module.scaling[name]),
    )


def hidden_states(backbone: Any, batch: Sequence[TrainingItem], device: str) -> Tensor:
    """Hidden states of trees laid one after the other: [tokens, hidden]."""
    if fits(backbone):
        return hidden_rows(backbone, [item.tree for item in batch], device, None)
    ids, depths, _ = packed(batch)
    state: Tensor = backbone(
        input_ids=attention.moved(ids, device)[None],
        position_ids=attention.moved(depths, device)[None],
        use_cache=False,
        stepmark_plan=attention.Plan.of_trees([item.tree for item in batch], device),
    ).last_hidden_state[0]
    return state


class Net:
    """A backbone in training.

    Args:
        spec: how solutions are read; its layout encodes the training rows.
        seed: of the adapter's and the head's first weights.

    Raises:
        CheckpointError: the base cannot be loaded, or its tokenizer lacks the layout's mark.
        UsageError: `frozen_layers` leaves nothing to train.
    """

    def __init__(
        self,
        base: Path,
        spec: ScoringSpec | CriticSpec,
        weights: Weights,
        *,
        max_tokens: int | None,
        seed: int,
    ) -> None:
        torch.manual_seed(seed)
        self.base, self.spec, self.weights = base, spec, weights
        self.device, self.dtype = weights.place, weights.torch_dtype
        # To be shared out, the weights are read into main memory: a device may not have room for all of them.
        place = "cpu" if weights.shard else self.device
        self.backbone: Any = load_backbone(base, dtype=self.dtype, device=place)
        config = self.backbone.config
        self.hidden_size = int(config.hidden_size)
        limits = [n for n in (max_tokens, token_limit(config)) if n is not None]
        self.max_tokens = min(limits, default=None)
        self.tokenizer = load_tokenizer(base)
        self._encoder: Encoder | None = None
        if isinstance(spec, ScoringSpec):
            self._encoder = Encoder(
                self.tokenizer, spec.layout, max_tokens=self.max_tokens, outcome_only=spec.outcome_only
            )
            # A base without the marker would be trained, and read, at the last piece of it.
            self._encoder.check()
        layers = int(config.num_hidden_layers)
        if weights.frozen_layers >= layers:
            # peft takes an empty list of layers for all of them.
            raise UsageError(
                f"`frozen_layers` is {weights.frozen_layers}, and the base has {layers} layers: none is left to train"
            )
        self.model: Any = self.backbone if weights.full else self._with_adapter(layers)
        if weights.full:
            self._freeze()
        if weights.gradient_checkpointing:
            with warnings.catch_warnings():
                # transformers 5.23 means to rename it; the new name is not in all that we support.
                warnings.filterwarnings("ignore", "`gradient_checkpointing_enable`", FutureWarning)
                self.backbone.gradient_checkpointing_enable({"use_reentrant": False})
        self._output: Tensor | None = None
        self.head: torch.nn.Module = torch.nn.Identity()

    @property
    def encoder(self) -> Encoder:
        """How solutions become tokens. Raises `CheckpointError` for a critic, which reads prompts."""
        if self._encoder is None:
            raise CheckpointError("a generative PRM reads prompts; it has no encoder of solutions")
        return self._encoder

    @property
    def threshold(self) -> float:
        """The score under which a step counts as wrong; 0.5 where the spec names none."""
        threshold = self.spec.threshold if isinstance(self.spec, ScoringSpec) else None
        return 0.5 if threshold is None else threshold

    def set_head(self, head: torch.nn.Module) -> None:
        """The head, in float32; its parameters are trained."""
        self.head = head.float().to(self.device)

    @property
    def named_parameters(self) -> dict[str, torch.nn.Parameter]:
        """What is trained, by name; the head's begin with "head."."""
        parameters = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        parameters |= {f"head.{name}": p for name, p in self.head.named_parameters() if p.requires_grad}
        if isinstance(self._output, torch.nn.Parameter) and self._output.requires_grad:
            parameters["output"] = self._output
        return parameters

    def hidden(self, batch: Sequence[TrainingItem]) -> Tensor:
        """Hidden states of trees laid one after the other: [tokens, hidden]. Gradients flow."""
        return hidden_states(self.backbone, batch, self.device)

    def read(self, batch: Sequence[TrainingItem]) -> Tensor:
        """The head's logits at the step ends of a batch: [reads, classes], float32."""
        if self.reads_tokens or not fits(self.backbone):
            return self.read_hidden(self.hidden(batch), batch)
        _, _, reads = packed(batch)
        rows, back = np.unique(reads, return_inverse=True)
        hidden = hidden_rows(self.backbone, [item.tree for item in batch], self.device, rows)
        logits: Tensor = self.head(hidden[attention.moved(back, self.device)].float())
        return logits

    def read_hidden(self, hidden: Tensor, batch: Sequence[TrainingItem]) -> Tensor:
        """The head's logits at the step ends, from the hidden states of the batch."""
        _, _, reads = packed(batch)
        rows = hidden[attention.moved(reads, self.device)].float()
        if self.reads_tokens:
            tokens, lengths = step_tokens(batch)
            logprobs = token_logprobs(hidden, self.output(), batch, np.unique(tokens))
            own = logprobs[attention.moved(tokens, self.device)]
            rows = torch.cat((token_features(own, lengths), rows), -1)
        logits: Tensor = self.head(rows)
        return logits

    @property
    def reads_tokens(self) -> bool:
        """Whether the head reads the step's tokens too."""
        return isinstance(self.spec, ScoringSpec) and isinstance(self.spec.readout.head, TokenHead)

    @property
    def tied(self) -> bool:
        """Whether the language-model head is the embedding."""
        return bool(self.backbone.config.tie_word_embeddings)

    def output(self) -> Tensor:
        """The language-model head [vocabulary, hidden]: tied to the embedding, or the base's own (then trained with all weights)."""
        if self.weights.shard:
            raise UsageError(
                "`shard`: this objective reads the language-model head, which is not shared out; take one with a head of its own (hard, ce, "
                "soft, mse, beta-binomial, three-class, outcome), or leave `shard` out"
            )
        if self._output is None:
            if self.tied:
                tied: Tensor = self.backbone.get_input_embeddings().weight
                return tied
            rows = output_rows(Tensors(self.base), self.backbone).to(self.device, self.dtype)
            self._output = torch.nn.Parameter(rows.clone(), requires_grad=self.weights.full)
        return self._output

    def train(self, on: bool) -> None:
        """Training or evaluation mode."""
        self.model.train(on)
        self.head.train(on)

    def _freeze(self) -> None:
        if not self.weights.frozen_layers:
            return
        self.backbone.get_input_embeddings().weight.requires_grad_(False)
        for layer in self.backbone.layers[: self.weights.frozen_layers]:
            layer.requires_grad_(False)

    def _with_adapter(self, layers: int) -> Any:
        from peft import LoraConfig, get_peft_model

        # By kind and not by the names that Llama has: peft adapts those that it finds and says nothing of the others.
        linear = sorted(
            {
                name.rsplit(".", 1)[-1]
                for name, module in self.backbone.named_modules()
                if isinstance(module, torch.nn.Linear)
            }
        )
        if not linear:
            raise UsageError(
                f"{self.base}: {type(self.backbone).__name__} has no linear layer for LoRA; train all weights (`full`)"
            )
        with warnings.catch_warnings():
            # peft 0.21 asks transformers a question that transformers means to rename.
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
            model: Any = get_peft_model(
                self.backbone,
                LoraConfig(
                    r=self.weights.lora_rank,
                    lora_alpha=self.weights.alpha,
                    target_modules=linear,
                    layers_to_transform=list(range(self.weights.frozen_layers, layers)),
                    layers_pattern="layers",
                ),
                # The adapter computes in the base's precision; the optimizer keeps float32 copies.
                autocast_adapter_dtype=False,
            )
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(torch.float32 if self.weights.shard else self.dtype)
        return model


MARKS = (
    "<extra_0>",  # Qwen2.5-Math-PRM's own
    "<file_sep>",  # SmolLM2, StarCoder
    "<|extra_0|>",
    "<|reserved_special_token_0|>",  # Llama 3
    "<|fim_pad|>",  # Qwen2.5, Qwen3
    "<unused0>",  # Gemma
    "<|placeholder1|>",  # Phi 3
    "[control_8]",  # Mistral
)
"""Tokens of known vocabularies that no mathematics uses, in the order in which they are looked for."""


def layout_for(
    tokenizer: Any, *, mark: str | None = None, layout: LayoutName = "auto", marked: bool = True
) -> Layout:
    r"""The layout of a new PRM.

    Args:
        mark: what ends a step and is read: one token of this tokenizer, white space (a line break may be written \n), or a text with a space in it, such as "Is this step right?",
            which stands on a line of its own and is read at its last token. None takes the first of `MARKS` that it has.
        layout: `chatml`: the problem as the user's turn and the steps as the assistant's, without a system message; `chat`: through the
            tokenizer's chat template; `text`: problem, blank line, steps. auto: the first that the tokenizer has.
        marked: a token ends a step and is read. False, for PRMs that are read from the probabilities of the text itself: a blank line
            ends it, unless `mark` names a token.

    Raises:
        UsageError: the mark is neither one token nor a text, none of the known marks is there, or the layout does not fit the tokenizer.
    """
    if mark is not None and not mark.replace("\\n", "").strip():
        mark = mark.replace("\\n", "\n")
    is_text = mark is not None and len(mark.split()) > 1 and not _is_token(tokenizer, mark)
    if is_text:
        # With its line break it ends where a token ends, whatever the next step begins with.
        mark = f"\n{mark}\n"
    elif mark is None or mark.strip():
        mark = f"\n{_mark(tokenizer, mark)}" if marked or mark is not None else "\n\n"
    chatml = all(_is_token(tokenizer, token) for token in ("<|im_start|>", "<|im_end|>"))
    if layout == "auto":
        layout = "chatml" if chatml else "chat" if tokenizer.chat_template else "text"
    if layout == "chatml":
        if not chatml:
            raise UsageError(
                "`layout` chatml: this tokenizer has no <|im_start|> and <|im_end|>; take chat or text"
            )
        return TextLayout(
            opening="<|im_start|>user\n{problem}<|im_end|>\n<|im_start|>assistant\n",
            mark=mark,
            mark_is_text=is_text,
            special_tokens=False,
        )
    if layout == "chat":
        if not tokenizer.chat_template:
            raise UsageError("`layout` chat: this tokenizer has no chat template; take text")
        return ChatLayout(mark=mark, mark_is_text=is_text)
    return TextLayout(opening="{problem}\n\n", mark=mark, mark_is_text=is_text)


def _mark(tokenizer: Any, mark: str | None) -> str:
    if mark is not None:
        if not _is_token(tokenizer, mark):
            raise UsageError(
                f"`mark` {mark!r} is not one token of this base but "
                f"{tokenizer.tokenize(mark)}; name a token that no solution holds, or a question of several words"
            )
        return mark
    for known in MARKS:
        if _is_token(tokenizer, known):
            return known
    raise UsageError(
        f"none of the known marks ({', '.join(MARKS)}) is a token of this base; name one as `mark`: a token of its vocabulary "
        "that no solution holds"
    )


def _is_token(tokenizer: Any, text: str) -> bool:
    ids = tokenizer.encode(text, add_special_tokens=False)
    return len(ids) == 1 and ids[0] != tokenizer.unk_token_id
