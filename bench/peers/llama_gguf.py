"""A GGUF file of random weights with the shape of one of our bench cases, for llama.cpp's llama-bench.

    python llama_gguf.py LLAMA_CPP OUT.gguf [--precision f32|bf16|q8_0] [--layers 12 --hidden 768 --heads 12 --ffn 2048 --vocab 50304]

Takes the package gguf from the source tree LLAMA_CPP. Needs numpy. The defaults are gpt-124m; embedding and output are tied."""
import argparse, sys

p = argparse.ArgumentParser()
p.add_argument("llama_cpp"); p.add_argument("out"); p.add_argument("--precision", default="f32", choices=("f32", "bf16", "q8_0"))
p.add_argument("--layers", type=int, default=12); p.add_argument("--hidden", type=int, default=768)
p.add_argument("--heads", type=int, default=12); p.add_argument("--ffn", type=int, default=2048)
p.add_argument("--vocab", type=int, default=50304); p.add_argument("--length", type=int, default=1024)
o = p.parse_args()
sys.path.insert(0, o.llama_cpp + "/gguf-py")
import numpy as np
import gguf

random = np.random.default_rng(1)
writer = gguf.GGUFWriter(o.out, "llama")
writer.add_context_length(o.length)
writer.add_embedding_length(o.hidden)
writer.add_block_count(o.layers)
writer.add_feed_forward_length(o.ffn)
writer.add_head_count(o.heads)
writer.add_head_count_kv(o.heads)
writer.add_rope_dimension_count(o.hidden // o.heads)
writer.add_layer_norm_rms_eps(1e-5)
writer.add_vocab_size(o.vocab)
writer.add_tokenizer_model("no_vocab")


def add(name, *shape):
    values = (random.standard_normal(shape, dtype=np.float32) * 0.02) if len(shape) > 1 else np.ones(shape, np.float32)
    if o.precision == "f32" or len(shape) == 1:
        writer.add_tensor(name, values)
        return
    kind = gguf.GGMLQuantizationType[o.precision.upper()]
    writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)


add("token_embd.weight", o.vocab, o.hidden)
add("output_norm.weight", o.hidden)
for i in range(o.layers):
    add(f"blk.{i}.attn_norm.weight", o.hidden)
    add(f"blk.{i}.ffn_norm.weight", o.hidden)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        add(f"blk.{i}.{name}.weight", o.hidden, o.hidden)
    add(f"blk.{i}.ffn_gate.weight", o.ffn, o.hidden)
    add(f"blk.{i}.ffn_up.weight", o.ffn, o.hidden)
    add(f"blk.{i}.ffn_down.weight", o.hidden, o.ffn)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
