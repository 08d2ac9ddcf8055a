"""A drafter of a few lines, passed as an object: a row's last token is followed by what followed it before."""

import numpy as np
import torch

from specframe import Pipeline
from specframe.contracts.drafts import Budget, Draft, Outcome
from specframe.contracts.round import Batch
from specframe.contracts.run import Run


class Lookup:
    """Prompt lookup with a match of one token; a row without a match repeats its last token."""

    needs: frozenset[str] = frozenset()
    offers = frozenset({"chain"})

    def start(self, run: Run) -> None:
        """Nothing to prepare."""

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn."""

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return ``budget.depth`` tokens for every row; 0 in rounds that read prompts."""
        tokens = batch.tokens_BS.cpu().numpy()
        rows = [self.row(tokens[row, :length], budget.depth) for row, length in enumerate(batch.lengths)]
        return Draft(torch.from_numpy(np.stack(rows)).to(batch.tokens_BS.device))

    def row(self, ids: np.ndarray, count: int) -> np.ndarray:
        earlier = np.flatnonzero(ids[:-1] == ids[-1])
        period = len(ids) - 1 - earlier[-1] if len(earlier) else 1
        return ids[len(ids) - period + np.arange(count) % period]


def main() -> None:
    prompt = "import os\nimport sys\n\ndef first(items):\n    return items[0]\n\ndef second(items):\n"
    pipe = Pipeline(target="tiny", drafter=Lookup(), draft_length=4)
    result = next(pipe.generate([prompt], max_new_tokens=32))
    print(prompt + result.text)
    print(f"--- acceptance rate {pipe.report.draft_acceptance_rate:.2f}, no draft model")


if __name__ == "__main__":
    main()
