"""Complete a few prompts in one batch with the embedded pair, and print what it took."""

from specframe import Pipeline

PROMPTS = [
    "import os\n",
    "def read_lines(path):\n",
    "class Stack:\n    def __init__(self):\n",
    "for name in sorted(names):\n",
]


def main() -> None:
    pipe = Pipeline(target="tiny", drafter="tiny-draft", batch_size=4, draft_length=5)
    for prompt, result in zip(PROMPTS, pipe.generate(PROMPTS, max_new_tokens=24), strict=True):
        print(f"--- {result.index}: {result.finish_reason} after {len(result.token_ids)} tokens")
        print(prompt + result.text)
    report = pipe.report
    print(f"--- {report.tokens} tokens, {report.tokens_per_second:.0f} per second")
    print(f"--- mean acceptance length {report.mean_acceptance_length:.2f}")


if __name__ == "__main__":
    main()
