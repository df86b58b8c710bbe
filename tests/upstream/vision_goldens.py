#!/usr/bin/env python3
"""Writes golden values of vision-language models with transformers, torchvision and Pillow.

  vision_goldens.py OUT    OUT/images: image files and what the image processors of Qwen2.5-VL, Gemma 3 and LLaVA make of
                           them; OUT/{qwen2_5_vl,gemma3,llava}: a small model with tokenizer and processor, a file of
                           conversations about images, and the tokens, losses and gradients of transformers.

tests/golden/golden_vision_1234.tar.xz is made of it: tar --sort=name --mtime=@0 --owner=0 --group=0 -C OUT -cJ .
"""

import io
import json
import os
import shutil
import sys
import tarfile

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.models.clip.image_processing_clip import CLIPImageProcessor
from transformers.models.gemma3.image_processing_gemma3 import Gemma3ImageProcessor
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

OUT = sys.argv[1]
os.makedirs(f"{OUT}/images", exist_ok=True)
torch.manual_seed(1234)
torch.set_num_threads(1)


def picture(width, height, seed):
    """Smooth colours, edges and a little noise."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    planes = [127 + 120 * np.sin(x / (5 + 3 * c) + seed) * np.cos(y / (7 - 2 * c)) for c in range(3)]
    image = np.stack(planes, axis=-1) + random.normal(0, 6, (height, width, 3))
    image[height // 3 : height // 2, width // 4 : width // 2] = (250, 20, 90)
    return Image.fromarray(np.clip(image, 0, 255).astype(np.uint8))


def write(name, image, **options):
    image.save(f"{OUT}/images/{name}", **options)
    return name


def files():
    yield write("rgb.png", picture(60, 44, 1))
    yield write("small.png", picture(17, 23, 2))
    yield write("wide.png", picture(150, 20, 3))
    yield write("large.png", picture(131, 97, 4))
    rgba = picture(40, 30, 5).convert("RGBA")
    rgba.putalpha(Image.fromarray((np.indices((30, 40)).sum(0) * 3 % 256).astype(np.uint8)))
    yield write("alpha.png", rgba)
    yield write("palette.png", picture(33, 31, 6).quantize(32))
    yield write("gray.png", picture(29, 50, 7).convert("L"))
    yield write("bits.png", picture(45, 35, 8).convert("1"))
    yield write("photo.jpg", picture(64, 48, 9), quality=85)
    yield write("photo444.jpg", picture(37, 53, 10), quality=95, subsampling=0)
    yield write("gray.jpg", picture(50, 41, 11).convert("L"), quality=90)
    exif = Image.Exif()
    exif[0x0112] = 6  # turn it by a quarter to see it upright
    yield write("turned.jpg", picture(48, 32, 12), quality=90, exif=exif)
    yield write("progressive.jpg", picture(70, 33, 13), quality=80, progressive=True)
    picture(20, 16, 14).save(f"{OUT}/images/plain.ppm")
    yield "plain.ppm"


def opened(name):
    from transformers.image_utils import load_image

    return load_image(f"{OUT}/images/{name}")


QWEN = dict(patch_size=14, merge_size=2, temporal_patch_size=2, min_pixels=28 * 28 * 2, max_pixels=28 * 28 * 9)
GEMMA = dict(size={"height": 56, "width": 56})
CLIP = dict(size={"shortest_edge": 42}, crop_size={"height": 42, "width": 42})
PROCESSORS = {
    "qwen": (Qwen2VLImageProcessor, QWEN),
    "gemma": (Gemma3ImageProcessor, GEMMA),
    "clip": (CLIPImageProcessor, CLIP),
}


def processors():
    tensors, configs = {}, {}
    names = list(files())
    for kind, (cls, options) in PROCESSORS.items():
        processor = cls(**options)
        configs[kind] = json.loads(processor.to_json_string())
        for name in names:
            result = processor(images=[opened(name)], return_tensors="pt")
            tensors[f"{kind}/{name}"] = result["pixel_values"].contiguous().float()
            if "image_grid_thw" in result:
                tensors[f"{kind}/{name}/grid"] = result["image_grid_thw"]
    for name in names:
        tensors[f"decoded/{name}"] = torch.from_numpy(np.array(opened(name)))
    # The size that a real Gemma 3 reads, every 97th value of it.
    whole = Gemma3ImageProcessor(size={"height": 896, "width": 896})(images=[opened("large.png")], return_tensors="pt")
    tensors["gemma896/large.png"] = whole["pixel_values"].flatten()[::97].contiguous()
    sizes = [(h, w) for h in (1, 13, 27, 42, 70, 500, 3000) for w in (1, 14, 41, 42, 98, 640, 4000) if max(h, w) / min(h, w) <= 200]
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    rows = [[h, w, *smart_resize(h, w, 28, 56 * 56, 28 * 28 * 1280)] for h, w in sizes]
    tensors["smart_resize"] = torch.tensor(rows)
    save_file(tensors, f"{OUT}/images/expected.safetensors")
    json.dump(configs, open(f"{OUT}/images/processors.json", "w"), indent=1)


TEXT = "what is in this image? a red field on waves of blue and green. describe the two pictures: colours, edges, noise. " * 3


def tokenizer(special, **names):
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    bpe.train_from_iterator([TEXT], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, **names)


def chat(begin, end, image, answer_role="assistant"):
    return (
        "{% for message in messages %}" + begin + "{{ '" + answer_role + "' if message['role'] == 'assistant' else message['role'] }}\n"
        "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
        "{% if part['type'] == 'image' %}" + image + "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
        + end + "\n{% endfor %}{% if add_generation_prompt %}" + begin + answer_role + "\n{% endif %}"
    )


ROWS = [
    {"images": ["a.png"], "messages": [
        {"role": "user", "content": "<image>what is in this image?"},
        {"role": "assistant", "content": "a red field on waves of blue."}]},
    {"images": ["b.jpg", "c.png"], "conversations": [
        {"from": "human", "value": "describe the two pictures: <image> and <image>"},
        {"from": "gpt", "value": "green edges, noise."},
        {"from": "human", "value": "colours?"},
        {"from": "gpt", "value": "two."}]},
    {"messages": [{"role": "user", "content": "is noise a colour?"}, {"role": "assistant", "content": "noise is noise."}]},
]


def write_rows(folder):
    picture(61, 45, 21).save(f"{folder}/a.png")
    picture(90, 40, 22).save(f"{folder}/b.jpg", quality=90)
    picture(30, 58, 23).save(f"{folder}/c.png")
    with open(f"{folder}/data.jsonl", "w") as file:
        for row in ROWS:
            file.write(json.dumps(row) + "\n")
    # The same rows as WebDataset has them.
    with tarfile.open(f"{folder}/data.tar", "w") as tar:
        for i, row in enumerate(ROWS):
            text = json.dumps({k: v for k, v in row.items() if k != "images"}).encode()
            member = tarfile.TarInfo(f"part/{i:04}.json")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
            for k, image in enumerate(row.get("images", [])):
                member = tarfile.TarInfo(f"part/{i:04}.{k}.{image.split('.')[1]}")
                member.size = os.path.getsize(f"{folder}/{image}")
                with open(f"{folder}/{image}", "rb") as content:
                    tar.addfile(member, content)


def messages_of(row):
    """With parts in place of <image>, as chat templates want them."""
    roles = {"human": "user", "gpt": "assistant"}
    for turn in row.get("messages") or row["conversations"]:
        role, text = turn.get("role") or roles[turn["from"]], turn.get("content") or turn["value"]
        parts = []
        for i, piece in enumerate(text.split("<image>")):
            if i > 0:
                parts.append({"type": "image"})
            if piece:
                parts.append({"type": "text", "text": piece})
        yield {"role": role, "content": parts if len(parts) > 1 or parts[0]["type"] == "image" else text}


def labels_of(ids, answer, end):
    """Answers alone are learned: what stands between the words that begin and end one, the end included."""
    labels = [-100] * len(ids)
    at = 0
    while at < len(ids):
        if ids[at : at + len(answer)] == answer:
            at += len(answer)
            while at < len(ids):
                labels[at] = ids[at]
                at += 1
                if ids[at - 1] == end[0]:
                    # the template's newline behind the end belongs to the answer's message, not to the next
                    if at < len(ids):
                        labels[at] = ids[at]
                        at += 1
                    break
        else:
            at += 1
    return labels


def train(name, model, processor, answer_text, end_text, vision_key):
    folder = f"{OUT}/{name}"
    tok = processor.tokenizer
    answer, end = tok.encode(answer_text, add_special_tokens=False), tok.encode(end_text, add_special_tokens=False)
    tensors = {}
    losses = []
    for i, row in enumerate(ROWS):
        text = processor.apply_chat_template(list(messages_of(row)), tokenize=False)
        images = [Image.open(f"{folder}/{file}").convert("RGB") for file in row.get("images", [])]
        inputs = processor(text=[text], images=[images] if images else None, return_tensors="pt", add_special_tokens=False)
        inputs.pop("token_type_ids", None) if name != "gemma3" else None
        ids = inputs["input_ids"][0].tolist()
        labels = labels_of(ids, answer, end)
        inputs["labels"] = torch.tensor([labels])
        result = model(**{k: v for k, v in inputs.items() if k != "mm_token_type_ids" or vision_key == "qwen"})
        losses.append(result.loss)
        tensors[f"ids.{i}"], tensors[f"labels.{i}"] = torch.tensor(ids), torch.tensor(labels)
        tensors[f"loss.{i}"] = result.loss.detach().reshape(1)
        if images:
            tensors[f"pixels.{i}"] = inputs["pixel_values"].detach().clone()
    mean = sum(losses) / len(losses)
    mean.backward()
    tensors["loss"] = mean.detach().reshape(1)
    save_file(tensors, f"{folder}/io.safetensors")
    # A prompt about the first image, and what the model writes.
    prompt = processor.apply_chat_template(list(messages_of(ROWS[0]))[:1], tokenize=False, add_generation_prompt=True)
    image = Image.open(f"{folder}/a.png").convert("RGB")
    inputs = processor(text=[prompt], images=[[image]], return_tensors="pt", add_special_tokens=False)
    with torch.no_grad():
        written = model.generate(**inputs, max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0)
    json.dump({"prompt": prompt, "prompt_ids": inputs["input_ids"][0].tolist(),
               "ids": written[0, inputs["input_ids"].shape[1] :].tolist()}, open(f"{folder}/generated.json", "w"))
    # Gradients under the names of the files: those that save_pretrained gives to weights.
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.zeros_like(p) if p.grad is None else p.grad)
    model.save_pretrained(f"{folder}/grads")
    os.replace(f"{folder}/grads/model.safetensors", f"{folder}/grads.safetensors")
    shutil.rmtree(f"{folder}/grads")
    print(name, [x.item() for x in losses])


def spread(model):
    """Weights large enough that every part of the model matters."""
    with torch.no_grad():
        for key, p in model.named_parameters():
            p.copy_(torch.randn_like(p) * 0.15 + (1.0 if "norm" in key and p.dim() == 1 and key.endswith("weight") and "gemma" not in type(model).__name__.lower() else 0.0))


def qwen():
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

    folder = f"{OUT}/qwen2_5_vl"
    os.makedirs(folder, exist_ok=True)
    write_rows(folder)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    tok = tokenizer(special, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tok.chat_template = chat("<|im_start|>", "<|im_end|>", "<|vision_start|><|image_pad|><|vision_end|>")
    images = Qwen2VLImageProcessor(**QWEN)
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor

    processor = Qwen2_5_VLProcessor(image_processor=images, tokenizer=tok, video_processor=Qwen2VLVideoProcessor(), chat_template=tok.chat_template)
    ids = {name: tok.convert_tokens_to_ids(name) for name in special}
    config = Qwen2_5_VLConfig(
        text_config=dict(vocab_size=320, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                         max_position_embeddings=256, rope_parameters={"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}, tie_word_embeddings=False),
        vision_config=dict(depth=2, hidden_size=32, intermediate_size=40, num_heads=4, out_hidden_size=32, patch_size=14, spatial_merge_size=2,
                           temporal_patch_size=2, window_size=56, fullatt_block_indexes=[1]),
        image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"], vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"], tie_word_embeddings=False)
    config._attn_implementation = "eager"
    model = Qwen2_5_VLForConditionalGeneration(config).float()
    spread(model)
    model.save_pretrained(f"{folder}/model")
    tok.save_pretrained(f"{folder}/model")
    images.save_pretrained(f"{folder}/model")
    train("qwen2_5_vl", model, processor, "<|im_start|>assistant\n", "<|im_end|>", "qwen")


def gemma():
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration, Gemma3Processor

    folder = f"{OUT}/gemma3"
    os.makedirs(folder, exist_ok=True)
    write_rows(folder)
    special = ["<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>", "<image_soft_token>"]
    tok = tokenizer(special, eos_token="<eos>", pad_token="<pad>", bos_token="<bos>",
                    extra_special_tokens={"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"})
    tok.chat_template = "{{ bos_token }}" + chat("<start_of_turn>", "<end_of_turn>", "<start_of_image>", "model")
    images = Gemma3ImageProcessor(**GEMMA)
    processor = Gemma3Processor(image_processor=images, tokenizer=tok, chat_template=tok.chat_template, image_seq_length=4)
    config = Gemma3Config(
        text_config=dict(vocab_size=320, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                         max_position_embeddings=256, sliding_window=16, layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=8),
        vision_config=dict(hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, image_size=56, patch_size=14, vision_use_head=False),
        mm_tokens_per_image=4, boi_token_index=tok.convert_tokens_to_ids("<start_of_image>"), eoi_token_index=tok.convert_tokens_to_ids("<end_of_image>"),
        image_token_index=tok.convert_tokens_to_ids("<image_soft_token>"), image_token_id=tok.convert_tokens_to_ids("<image_soft_token>"))
    config._attn_implementation = "eager"
    model = Gemma3ForConditionalGeneration(config).float()
    spread(model)
    model.save_pretrained(f"{folder}/model")
    tok.save_pretrained(f"{folder}/model")
    images.save_pretrained(f"{folder}/model")
    json.dump({"image_seq_length": 4, "processor_class": "Gemma3Processor"}, open(f"{folder}/model/processor_config.json", "w"))
    train("gemma3", model, processor, "<start_of_turn>model\n", "<end_of_turn>", "gemma")


def llava():
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor

    folder = f"{OUT}/llava"
    os.makedirs(folder, exist_ok=True)
    write_rows(folder)
    special = ["<unk>", "<s>", "</s>", "<image>", "<pad>", "<|im_start|>", "<|im_end|>"]
    tok = tokenizer(special, eos_token="</s>", pad_token="<pad>", bos_token="<s>")
    tok.chat_template = chat("<|im_start|>", "<|im_end|>", "<image>")
    images = CLIPImageProcessor(**CLIP)
    processor = LlavaProcessor(image_processor=images, tokenizer=tok, patch_size=14, vision_feature_select_strategy="default",
                               num_additional_image_tokens=1, chat_template=tok.chat_template)
    config = LlavaConfig(
        text_config=LlamaConfig(vocab_size=320, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                max_position_embeddings=256, tie_word_embeddings=False),
        vision_config=CLIPVisionConfig(hidden_size=32, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4, image_size=42, patch_size=14),
        image_token_index=tok.convert_tokens_to_ids("<image>"), vision_feature_layer=-2, vision_feature_select_strategy="default",
        tie_word_embeddings=False)
    config._attn_implementation = "eager"
    model = LlavaForConditionalGeneration(config).float()
    spread(model)
    model.save_pretrained(f"{folder}/model")
    tok.save_pretrained(f"{folder}/model")
    images.save_pretrained(f"{folder}/model")
    train("llava", model, processor, "<|im_start|>assistant\n", "<|im_end|>", "llava")


processors()
qwen()
gemma()
llava()
