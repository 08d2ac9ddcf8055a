"""An observer that prints every round: how long each row was, and how many draft tokens were accepted."""

from specframe import Pipeline
from specframe.contracts.reports import RoundReport
from specframe.contracts.roles import Observer


class Printer(Observer):
    """Prints a line per round."""

    def round(self, report: RoundReport) -> None:
        if report.prefill:
            print(f"round {report.number:3}: read prompts of {report.lengths.tolist()} tokens")
            return
        rows = zip(report.sequences, report.lengths.tolist(), report.accepted.tolist(), strict=True)
        told = [f"prompt {s.request.index} at {length}: {n}/{report.depth}" for s, length, n in rows]
        print(f"round {report.number:3}: {', '.join(told)}")


def main() -> None:
    pipe = Pipeline(target="tiny", drafter="tiny-draft", batch_size=2, draft_length=5, observers=[Printer()])
    prompts = ["import os\n", "def read_lines(path):\n", "class Stack:\n"]
    for _ in pipe.generate(prompts, max_new_tokens=16):
        pass


if __name__ == "__main__":
    main()
