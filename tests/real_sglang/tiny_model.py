"""Write a tiny random model's configuration and tokenizer; run by the Python that has sglang, not by ours.

Two layers of 64, a self-made byte-level BPE tokenizer, no weights: `--load-format dummy` draws them. Most tokens have
no text; with `words` as the second argument each is a word, so that every event of an answer has text.
"""

import json
import pathlib
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB = 2048


def main(folder: pathlib.Path, *, words: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = word_tokenizer() if words else byte_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"})
    )
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "float32",
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def byte_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(["pack my box with five dozen liquor jugs"] * 10, trainer)
    return tokenizer


def word_tokenizer() -> Tokenizer:
    words = ["<s>", "</s>", *(f"w{number}" for number in range(2, VOCAB))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="w2"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), words="words" in sys.argv[2:])
