"""A tiny Llama as a GGUF file, written as llama.cpp's converter does, beside a folder with the very same weights."""

import json
from pathlib import Path

import gguf
import tiny
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import AutoModelForCausalLM

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
}
QUANTIZATION = "Q4_1 (94% Q4_1, 6% F32)"
TEMPLATE = "{% for message in messages %}<eos>{{ message['content'] }}{% endfor %}"


def write(
    path: Path, folder: Path | None = None, *, leave_out: str = "", more: str = "", pre: str = "smollm", **extra: str
) -> Path:
    """Writes `path` and returns a checkpoint folder, whose weights are the file's, dequantized.

    folder: a model to write, in place of a fresh one; leave_out: a tensor, or 'tokenizer'; more: a tensor beside the
    model's; pre: its pre-tokenizer; extra: more metadata, with __ for dots.
    """
    folder = folder or tiny.folder(path.parent / "plain")
    model = AutoModelForCausalLM.from_pretrained(folder)
    writer = gguf.GGUFWriter(path, "llama")
    _write_sizes(writer, model.config)
    if leave_out != "tokenizer":
        _write_tokenizer(writer, json.loads((folder / "tokenizer.json").read_text()), pre)
    for key, value in extra.items():
        writer.add_string(key.replace("__", "."), value)
    if more:
        writer.add_tensor(more, torch.ones(4).numpy())
    for name, weight in model.state_dict().items():
        stored = gguf_name(name)
        if stored == leave_out:
            continue
        heads = {"attn_q": 4, "attn_k": 2}.get(stored.split(".")[-2])
        array = (permuted(weight, heads) if heads else weight).numpy()
        chosen = Kind.Q4_1 if array.ndim == 2 and array.shape[1] % 32 == 0 else Kind.F32
        blocks = gguf.quantize(array, chosen)
        writer.add_tensor(stored, blocks, raw_dtype=chosen)
        exact = torch.from_numpy(gguf.dequantize(blocks, chosen).copy())
        with torch.no_grad():
            weight.copy_(unpermuted(exact, heads) if heads else exact)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model.save_pretrained(folder)
    return folder


def gguf_name(name: str) -> str:
    parts = name.removeprefix("model.").split(".")
    if parts[0] == "layers":
        return f"blk.{parts[1]}.{NAMES['.'.join(parts[2:-1])]}.weight"
    return f"{NAMES['.'.join(parts[:-1])]}.weight"


def permuted(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of each head from halves (Hugging Face) to pairs (llama.cpp)."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1)
    return halves.transpose(1, 2).reshape(weight.shape)


def unpermuted(weight: torch.Tensor, heads: int) -> torch.Tensor:
    pairs = weight.reshape(heads, weight.shape[0] // heads // 2, 2, -1)
    return pairs.transpose(1, 2).reshape(weight.shape)


def _write_sizes(writer, config) -> None:
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def _write_tokenizer(writer, tokenizer: dict, pre: str) -> None:
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    special = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(special["<bos>"])
    writer.add_eos_token_id(special["<eos>"])
    writer.add_pad_token_id(special["<pad>"])
    writer.add_chat_template(TEMPLATE)
