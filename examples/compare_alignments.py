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
    tokens = {"plain decoding": [result.token_ids for result in plain.generate(PROMPTS, max_new_tokens=32)]}
    reports = {"plain decoding": plain.report}
    for align in ("ragged", "eqspec", "exspec"):
        pipe = Pipeline(plain.target_model, "tiny-draft", align=align, tokenizer=plain.tokenizer, batch_size=4)
        tokens[align] = [result.token_ids for result in pipe.generate(PROMPTS, max_new_tokens=32)]
        reports[align] = pipe.report
    for name, report in reports.items():
        assert tokens[name] == tokens["plain decoding"], f"{name} gives other tokens than plain decoding"
        print(f"{name:15} {report.tokens_per_second:7.0f} tokens/s, {report.realign_share:4.0%} of the time realigning")
    print("the tokens are equal")


if __name__ == "__main__":
    main()
