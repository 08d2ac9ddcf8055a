"""Decode the same prompts plainly and under three alignments: the tokens are equal, the speed is not."""

from specframe import Pipeline

PROMPTS = [
    "import os\n",
    "def read_lines(path):\n    with open(path) as file:\n",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "for name in sorted(names):\n",
]


def main() -> None:
    plain = Pipeline(target="tiny", drafter=None, batch_size=4)
    schemes = {"plain decoding": plain}
    for align in ("ragged", "eqspec", "exspec"):
        schemes[align] = Pipeline(
            plain.target_model, "tiny-draft", align=align, tokenizer=plain.tokenizer, batch_size=4
        )
    expected = [result.token_ids for result in plain.generate(PROMPTS, max_new_tokens=32)]
    for name, pipe in schemes.items():
        list(pipe.generate(PROMPTS, max_new_tokens=4))  # the first run is slower: it is not counted
        tokens = [result.token_ids for result in pipe.generate(PROMPTS, max_new_tokens=32)]
        assert tokens == expected, f"{name} gives other tokens than plain decoding"
        figures = pipe.report
        print(
            f"{name:15} {figures.tokens_per_second:6.0f} tokens/s, {figures.realign_share:3.0%} of the time realigning"
        )
    print("the tokens are equal")


if __name__ == "__main__":
    main()
