"""A random language model of a few thousand weights, and tokenizers made from a few sentences."""

from __future__ import annotations

import string

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TEXTS = [
    "is it correct? yes it is correct. is the step correct? no it is not correct.",
    "the step is wrong, the sum of the numbers is 5 and not 6. yes. no. correct. wrong.",
    "let us see: 2 + 3 = 5, so the step is correct. yes, the answer is 12.",
] * 20


def tiny_tokenizer(*, template=TEMPLATE, bos=True, closes=False, metaspace=False):
    """Byte-level BPE (or, with `metaspace`, of the Llama kind) with ChatML's control tokens."""
    special = ["<|bos|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE())
    if metaspace:
        tokenizer.normalizer = normalizers.Sequence([])
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        alphabet = [*string.printable, "▁"]
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = [chr(c) for c in range(33, 127)] + ["Ġ", "Ċ"]
    trainer = trainers.BpeTrainer(
        vocab_size=200, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_TEXTS, trainer)
    if (bos or closes) and not metaspace:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=("<|bos|> " if bos else "") + "$A" + (" <|im_end|>" if closes else ""),
            special_tokens=[("<|bos|>", 0), ("<|im_end|>", 2)],
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=special[0], eos_token=special[2], chat_template=template
    )


def tiny_model(tokenizer, *, seed=0, context=160, hidden=32, tied=False):
    """A Llama with random weights, wide enough apart that its choices are not all alike."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        initializer_range=0.3,
        tie_word_embeddings=tied,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config).eval()
