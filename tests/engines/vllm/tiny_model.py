"""Makes the folder of a tiny Llama: configuration and tokenizer. Runs in vLLM's own environment.

    python tiny_model.py FOLDER

There are no weights: the engine is started with `--load-format dummy`, which draws them from a
fixed seed. The tokenizer knows 2,000 made-up words, one token each, so a prompt of n words is n
tokens long.
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

HIDDEN, LAYERS, HEADS, WORDS, CONTEXT = 128, 2, 4, 2000, 4096
SPECIAL = ["<s>", "</s>", "<unk>"]

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": 4 * HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": HIDDEN // HEADS,
    "vocab_size": WORDS,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "model_max_length": CONTEXT,
    "chat_template": "{% for m in messages %}{{ m['content'] }} {% endfor %}",
}


def words() -> list[str]:
    """The vocabulary: the special tokens, then w3, w4, …"""
    return SPECIAL + [f"w{i}" for i in range(len(SPECIAL), WORDS)]


def main(folder: Path) -> None:
    """Write the folder."""
    folder.mkdir(parents=True)
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words())}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG, indent=1))
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
