"""Text that is printed as it grows: two samples of a prompt, each until a blank line."""

from specframe import Pipeline, Sampling


def main() -> None:
    pipe = Pipeline(target="tiny", drafter="tiny-draft", batch_size=2, draft_length=5)
    sampling = Sampling(temperature=0.7, samples=2, stop="\n\n", logprobs=0)
    for chunk in pipe.stream(["def read_lines(path):\n"], max_new_tokens=40, sampling=sampling):
        print(f"sample {chunk.sample}: {len(chunk.token_ids)} tokens, {chunk.text!r}")
        if chunk.result is not None:
            total = sum(chunk.result.logprobs)
            print(f"sample {chunk.sample}: {chunk.result.finish_reason}, log-probability {total:.1f}")


if __name__ == "__main__":
    main()
